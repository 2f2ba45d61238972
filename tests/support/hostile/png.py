"""PNG and JPEG files by hand, for what no library would write."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, RGB, PALETTE, GREY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    """One chunk with its checksum, or with another."""
    checksum = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def header(width: int, height: int, depth: int = 8, colour: int = RGB, interlace: int = 0) -> bytes:
    """The IHDR chunk."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))


def png(head: bytes, rows: bytes, *others: bytes) -> bytes:
    """A PNG of this header, these (filtered) rows and other chunks between the two."""
    return SIGNATURE + head + b"".join(others) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


@cache
def deflated(size: int) -> bytes:
    """`size` zero bytes, deflated without ever being in memory at once."""
    packer = zlib.compressobj(1)
    megabyte = bytes(1024**2)
    return b"".join(packer.compress(megabyte) for _ in range(size // len(megabyte))) + packer.flush()


def saved(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """The image as Pillow writes it."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def ramp(width: int = 24, height: int = 16) -> Image.Image:
    """A small picture in which no two corners look alike."""
    values = np.arange(width * height * 3, dtype=np.uint32).reshape(height, width, 3) % 251
    return Image.fromarray(values.astype(np.uint8))


def noise(side: int = 64) -> Image.Image:
    """A picture that does not compress."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


def scans(times: int, side: int = 512) -> bytes:
    """A progressive JPEG whose last scan is repeated: small to send, long to decode."""
    data = saved(ramp(side, side), "JPEG", progressive=True)
    start = data.rindex(b"\xff\xda")
    return data[:start] + data[start:-2] * times + data[-2:]


def jpeg_of_size(width: int, height: int) -> bytes:
    """A JPEG whose header claims a size."""
    data = bytearray(saved(ramp(), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_of_size(width: int, height: int) -> bytes:
    """A WebP whose extended header claims a size."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + bytes(4) + size + saved(ramp(), "WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def interlaced(pixels: NDArray[np.uint8]) -> bytes:
    """An RGB PNG in the seven passes of Adam7, which Pillow reads but does not write."""
    rows = bytearray()
    for left, top, across, down in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)):
        rows += _pass(pixels[top::down, left::across])
    height, width = pixels.shape[:2]
    return png(header(width, height, interlace=1), bytes(rows + _pass(pixels[1::2])))


def _pass(pixels: NDArray[np.uint8]) -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in pixels) if pixels.size else b""
