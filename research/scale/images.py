"""Draw small, distinct source images with a class each, and write them as an archive of class folders."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from research.scale.waiting_services import CLASSES
from shared.media.images import encode

SIDE = 25  # 1,875 random bytes: some 2 kB as PNG


def picture(number: int) -> bytes:
    """PNG bytes of a picture that only this number gives."""
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    pixels[0, 0] = number % len(CLASSES)
    return encode(pixels)


def name(number: int) -> str:
    """Its file in the archive; the folder is its class."""
    return f"{CLASSES[number % len(CLASSES)]}/{number:06}.png"


def write_archive(path: Path, images: int) -> None:
    """Write the archive, unless it is there."""
    if path.exists():
        return
    beside = path.with_suffix(".part")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as archive:
        for number in range(images):
            archive.writestr(zipfile.ZipInfo(name(number)), picture(number))
    beside.rename(path)


def pictures(first: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of some pictures."""
    for number in range(first, first + count):
        yield name(number), picture(number)
