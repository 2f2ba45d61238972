"""Label maps, a place of a class for each pixel, and confusion counts of two of them. Numpy only.

A label map holds the place of a class for each pixel, `OTHER` for a class that the job does not have, and, in the
reference alone, `VOID` for pixels that are not judged. Confusion counts have a row for each class of the reference and
a column for each predicted one, the last for `OTHER`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VOID = 255
OTHER = 254
Map = NDArray[np.uint8]
Counts = NDArray[np.int64]


def placed(names: Sequence[str], classes: Sequence[str]) -> Map:
    """Of each index of `names` the place of that name in `classes`, `OTHER` where there is none; length 256."""
    table = np.full(256, OTHER, np.uint8)
    for index, name in enumerate(names):
        table[index] = classes.index(name) if name in classes else OTHER
    return table


def confusion(reference: Map, predicted: Map, classes: int) -> Counts:
    """Pixels by class of the reference (row) and predicted class (column), classes × (classes + 1); void left out.

    Raises ValueError where the maps are not of one size.
    """
    if reference.shape != predicted.shape:
        raise ValueError(f"a map of {predicted.shape} cannot be held against one of {reference.shape}")
    judged = reference != VOID
    columns = np.minimum(predicted[judged].astype(np.int64), classes)  # OTHER is the last column
    places = reference[judged].astype(np.int64) * (classes + 1) + columns
    return np.bincount(places, minlength=classes * (classes + 1)).reshape(classes, classes + 1)


def packed(counts: Counts) -> list[int]:
    """Counts as row, column, pixels, again and again, without the zeros: a few numbers for each image."""
    rows, columns = np.nonzero(counts)
    return np.stack([rows, columns, counts[rows, columns]], axis=1).ravel().tolist()


def unpacked(flat: Sequence[int], classes: int) -> Counts:
    """The inverse of `packed`."""
    counts = np.zeros((classes, classes + 1), np.int64)
    rows, columns, pixels = np.asarray(flat, np.int64).reshape(-1, 3).T
    counts[rows, columns] = pixels
    return counts
