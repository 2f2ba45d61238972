"""What Pillow does not tell of a PNG: its bit depth and colour type, and whether pixel data are missing."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from shared.problems import Malformed

_INFLATED_AT_ONCE = 1024**2  # bytes
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Offsets in a PNG: 8 bytes signature, 8 chunk head, 4 width, 4 height, then a byte each.
_PNG_SIZE, _PNG_BIT_DEPTH, _PNG_COLOUR, _PNG_INTERLACE = 16, 24, 25, 28
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


class PngHeader(NamedTuple):
    """Bits per channel; size in pixels; colour type: 0 grey, 2 RGB, 3 palette, 4 grey + alpha, 6 RGB + alpha."""

    bits: int
    colour_type: int
    width: int
    height: int


def png_header(data: bytes) -> PngHeader | None:
    """Read a PNG's header; None if the bytes do not begin like a PNG."""
    if not data.startswith(_PNG_SIGNATURE) or len(data) <= _PNG_COLOUR:
        return None
    width, height = struct.unpack_from(">II", data, _PNG_SIZE)
    return PngHeader(data[_PNG_BIT_DEPTH], data[_PNG_COLOUR], width, height)


def refuse_missing_rows(data: bytes) -> None:
    """Refuse a PNG whose pixel data ends early without an error: Pillow would fill the rest with black."""
    width, height = struct.unpack_from(">II", data, _PNG_SIZE)
    bits = data[_PNG_BIT_DEPTH] * _PNG_CHANNELS[data[_PNG_COLOUR]]
    passes = _ADAM7 if data[_PNG_INTERLACE] else ((0, 0, 1, 1),)
    missing = 0
    for left, top, across, down in passes:
        columns, rows = -((left - width) // across), -((top - height) // down)
        missing += rows * (1 + (columns * bits + 7) // 8) if columns > 0 else 0
    inflater = zlib.decompressobj()
    for packed in _png_pixel_data(data):
        while packed and missing > 0:
            missing -= len(inflater.decompress(packed, _INFLATED_AT_ONCE))
            packed = inflater.unconsumed_tail
    if missing > 0:
        raise Malformed("the image is broken (pixel data are missing); export it again")


def _png_pixel_data(data: bytes) -> Iterator[bytes]:
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            yield data[at + 8 : at + 8 + length]
        at += 12 + length
