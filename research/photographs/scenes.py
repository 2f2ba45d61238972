"""Photographs of animals, monuments, tools and instruments: those of GCompris, a Debian package, each once."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from research.photographs.packages import Package, members

SCENES = Package(
    "g/gcompris-qt",
    "gcompris-qt-data_3.1-2_all.deb",
    "e9cf06ab2105529068df73085784e835d2ff03f870d2a8091f09125d40abac9f",
    "GPL-3+ and others",
)
# Qt resource files whose opaque WebP images are photographs.
ACTIVITIES = (
    "categorization", "erase", "explore_farm_animals", "explore_monuments", "explore_world_animals",
    "explore_world_music",
)  # fmt: skip
LEAST, LONGEST = 100, 640  # pixels of the shorter and the longer side
_SAME = 0.97  # correlation of 16 × 16 grey levels above which two images show one photograph


def scenes(package: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Name and pixels of each photograph."""
    seen: list[NDArray[np.float64]] = []
    for path, content in sorted(members(package)):
        if path.suffix != ".rcc" or path.stem not in ACTIVITIES:
            continue
        for number, image in enumerate(_images(content)):
            look = np.asarray(image.convert("L").resize((16, 16)), np.float64).ravel()
            look = (look - look.mean()) / (look.std() + 1e-9) / 16
            if all(look @ other < _SAME for other in seen):
                seen.append(look)
                yield f"{path.stem}-{number}", np.asarray(image)


def _images(resources: bytes) -> Iterator[Image.Image]:
    """The opaque WebP images in a file of Qt resources, scaled down; each says how long it is."""
    start = resources.find(b"RIFF")
    while start >= 0:
        (length,) = struct.unpack("<I", resources[start + 4 : start + 8])
        if resources[start + 8 : start + 12] == b"WEBP":
            try:
                image = Image.open(io.BytesIO(resources[start : start + 8 + length]))
                if image.mode == "RGB" and min(image.size) >= LEAST:
                    image.thumbnail((LONGEST, LONGEST))
                    yield image
            except (UnidentifiedImageError, OSError):
                pass  # the letters RIFF stood there by chance
        start = resources.find(b"RIFF", start + 4)
