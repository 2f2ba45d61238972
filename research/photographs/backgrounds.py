"""The photographic backgrounds, and what each shows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from research.photographs.cutouts import SIDE
from research.photographs.packages import members

# File of the package → value. Chosen by eye, before any prediction: no object of one of the trial's classes is in them.
VALUES = {
    "Aqua.jpg": "water drop",
    "Dune.jpg": "grass by the sea",
    "GreenMeadow.jpg": "meadow",
    "RainDrops.jpg": "wet leaf",
    "Storm.jpg": "road under dark clouds",
    "Wood.jpg": "pale wood",
}


def backgrounds(package: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Value and pixels (SIDE × SIDE × 3): the middle of each photograph."""
    for path, content in members(package):
        if path.parent.name == "nature" and path.name in VALUES:
            with Image.open(io.BytesIO(content)) as image:
                image.draft("RGB", (2 * SIDE, 2 * SIDE))
                yield VALUES[path.name], np.asarray(ImageOps.fit(image.convert("RGB"), (SIDE, SIDE)))
