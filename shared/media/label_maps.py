"""Label maps (a class index per pixel) and the confusion counts of two of them. Needs numpy only.

A label map holds the index of a class for each pixel, `OTHER` for a class that the job does not have, and, in the
reference only, `VOID` for pixels that are not evaluated. Confusion counts have a row for each class of the reference
and a column for each predicted class; the last column is `OTHER`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VOID = 255
OTHER = 254
Map = NDArray[np.uint8]
Counts = NDArray[np.int64]


def class_indices(names: Sequence[str], classes: Sequence[str]) -> Map:
    """Lookup table (length 256) from an index in `names` to the index of that name in `classes`, else `OTHER`."""
    indices = np.full(256, OTHER, np.uint8)
    for index, name in enumerate(names):
        indices[index] = classes.index(name) if name in classes else OTHER
    return indices


def confusion(reference: Map, predicted: Map, classes: int) -> Counts:
    """Count pixels by reference class (row) and predicted class (column), classes × (classes + 1), without void.

    Raises ValueError if the maps differ in size.
    """
    if reference.shape != predicted.shape:
        raise ValueError(f"a map of {predicted.shape} cannot be compared with one of {reference.shape}")
    evaluated = reference != VOID
    columns = np.minimum(predicted[evaluated].astype(np.int64), classes)  # OTHER is the last column
    cells = reference[evaluated].astype(np.int64) * (classes + 1) + columns
    return np.bincount(cells, minlength=classes * (classes + 1)).reshape(classes, classes + 1)


def pack_counts(counts: Counts) -> list[int]:
    """Flatten the non-zero counts to row, column, pixels, row, column, pixels, ...: a few numbers per image."""
    rows, columns = np.nonzero(counts)
    return np.stack([rows, columns, counts[rows, columns]], axis=1).ravel().tolist()


def unpack_counts(flat: Sequence[int], classes: int) -> Counts:
    """The inverse of `pack_counts`."""
    counts = np.zeros((classes, classes + 1), np.int64)
    rows, columns, pixels = np.asarray(flat, np.int64).reshape(-1, 3).T
    counts[rows, columns] = pixels
    return counts


def overlaps(counts: Counts) -> NDArray[np.float64]:
    """IoU of each class, TP / (TP + FP + FN), in 0 … 1; NaN for a class in neither reference nor prediction."""
    hits, union = hits_and_union(counts)
    return np.asarray(np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0))


def hits_and_union(counts: Counts) -> Counts:
    """Pixels of each class (2 × classes): in both reference and prediction; in at least one of them."""
    hits = np.diagonal(counts)
    return np.stack([hits, counts.sum(axis=1) + counts[:, :-1].sum(axis=0) - hits])


def named_overlaps(counts: Counts, classes: Sequence[str]) -> dict[str, float]:
    """IoU by name of the classes in the reference of one image."""
    in_reference = counts.sum(axis=1) > 0
    values = overlaps(counts)
    return {name: float(values[index]) for index, name in enumerate(classes) if in_reference[index]}
