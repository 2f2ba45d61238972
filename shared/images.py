"""Decode uploaded images under limits into one canonical form, with a digest over pixels.

Canonical form: EXIF orientation applied, 8 bits per channel, mode RGB (L for masks), lossless PNG without metadata.
Images with transparency, 16 bits or animation are refused with a reason, never converted silently. Limits on pixels,
aspect ratio and JPEG scans are checked before anything is decoded. The number of pixels that a process
decodes at a time is also limited, so large images wait for one another.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.admission import Budget
from shared.problems import InvalidInput, Malformed, TooLarge

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_SHAPE = 50  # long side / short side; models scale the short side up to their size, and the long side with it
MAX_JPEG_SCANS = 50  # decoding visits the whole image once per scan, and a scan may have only a hundred bytes
# glibc returns blocks of more than 32 MiB to the system; each thread that decoded an image keeps smaller ones.
Image.core.set_block_size(64 * 1024**2)  # type: ignore[attr-defined]
Image.MAX_IMAGE_PIXELS = None  # replaced by our own limit, which is checked before any pixel is decoded
Mode = Literal["RGB", "L"]
Pixels = NDArray[np.uint8]
# Pillow's modes that convert to RGB without losing anything a person sees; CMYK goes through Pillow's plain formula.
_CONVERTIBLE = frozenset({"RGB", "L", "P", "1", "CMYK", "YCbCr", "LA", "RGBA", "PA"})

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # the transposition that undoes each EXIF orientation
_INFLATED_AT_ONCE = 1024**2  # bytes
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG = ("JPEG", "MPO")  # cameras write a preview after the photograph (MPO); the first picture is used
_START_OF_SCAN = b"\xff\xda"
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


class ImageSettings(BaseSettings):
    """The image limit of every process: gateway, worker, model services and trainer."""

    model_config = SettingsConfigDict(env_prefix="CONTRAFACT_", extra="ignore", use_attribute_docstrings=True)

    max_image_pixels: Annotated[int, Field(ge=1)] = 40_000_000
    """Width × height of the largest image; also the pixels that one process decodes at a time."""


@dataclass(frozen=True, slots=True)
class CanonicalImage:
    """An image as Contrafact keeps it: PNG bytes, size in pixels, mode and digest.

    `file_size`: width and height before it was scaled.
    """

    png: bytes
    width: int
    height: int
    mode: Mode
    digest: str
    file_size: tuple[int, int]


def canonical(
    data: bytes, mode: Mode = "RGB", max_pixels: int | None = None, working_side: int | None = None
) -> CanonicalImage:
    """Decode an upload and convert it to canonical form.

    An image whose longer side exceeds `working_side` pixels is scaled down to it (RGB by Lanczos).
    Raises Malformed (not a PNG, JPEG or WebP, or broken), TooLarge (pixels, scans), InvalidInput (too elongated,
    animated, 16 bits, transparent pixels). An alpha channel that is opaque everywhere is dropped. For `mode` "L"
    (masks) the image must be grey or a palette of indices: values are kept as they are, not mixed from colours.
    `max_pixels`: width × height; default CONTRAFACT_MAX_IMAGE_PIXELS.
    """
    scaling = Image.Resampling.LANCZOS if mode == "RGB" else Image.Resampling.NEAREST
    pixels, file_size = _decode(data, mode, max_pixels, working_side, scaling)
    return from_array(pixels, file_size)


def from_array(pixels: Pixels, file_size: tuple[int, int] | None = None) -> CanonicalImage:
    """Return the canonical image of uint8 pixels, (height, width, 3) for RGB or (height, width) for L.

    `file_size`: width and height of the file that they were read from, if they were scaled.
    """
    mode: Mode = "L" if pixels.ndim == 2 else "RGB"
    if pixels.dtype != np.uint8 or (mode == "RGB" and pixels.shape[2:] != (3,)) or 0 in pixels.shape:
        raise ValueError(f"pixels must be uint8, (height, width) or (height, width, 3): {pixels.dtype} {pixels.shape}")
    height, width = pixels.shape[:2]
    return CanonicalImage(encode(pixels), width, height, mode, digest(pixels), file_size or (width, height))


def digest(pixels: Pixels) -> str:
    """SHA-256 (hexadecimal) over mode, size and pixels: equal pixels have equal digests, whatever the compression."""
    height, width = pixels.shape[:2]
    head = f"{'L' if pixels.ndim == 2 else 'RGB'} {width} {height}\n".encode()
    hashed = hashlib.sha256(head)
    hashed.update(np.ascontiguousarray(pixels).data)
    return hashed.hexdigest()


def encode(pixels: Pixels) -> bytes:
    """PNG bytes of uint8 pixels, RGB or L, without metadata; the same bytes for the same pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


def decode(png: bytes, mode: Mode = "RGB", max_pixels: int | None = None) -> Pixels:
    """Decode an image from a service call into uint8 pixels, (height, width, 3) or (height, width).

    Raises as `canonical` does: services do not trust their callers either.
    """
    return _decode(png, mode, max_pixels, None, Image.Resampling.NEAREST)[0]


def working_size(width: int, height: int, working_side: int) -> tuple[int, int]:
    """Width and height of an image after scaling down a longer side that exceeds `working_side`."""
    longer = max(width, height)
    if longer <= working_side:
        return width, height
    return max(1, round(width * working_side / longer)), max(1, round(height * working_side / longer))


def decode_mask(
    png: bytes, mode: Mode, max_pixels: int | None, working_side: int | None
) -> tuple[Pixels, tuple[int, int]]:
    """A mask as uint8 values of this mode, and width and height before it was scaled.

    It is scaled to the size to which `canonical` scales its image, but each pixel takes the value at its centre, so
    values are never mixed. Raises as `canonical` does.
    """
    return _decode(png, mode, max_pixels, working_side, Image.Resampling.NEAREST)


def png_header(data: bytes) -> PngHeader | None:
    """Read a PNG's header; None if the bytes do not begin like a PNG."""
    if not data.startswith(_PNG_SIGNATURE) or len(data) <= _PNG_COLOUR:
        return None
    width, height = struct.unpack_from(">II", data, _PNG_SIZE)
    return PngHeader(data[_PNG_BIT_DEPTH], data[_PNG_COLOUR], width, height)


def to_array(image: Image.Image) -> Pixels:
    """A Pillow image's pixels as a writable uint8 array."""
    return np.array(image, dtype=np.uint8)


@cache
def max_image_pixels() -> int:
    """CONTRAFACT_MAX_IMAGE_PIXELS."""
    return ImageSettings().max_image_pixels


# The pixels that this process may decode at a time: an image of 40 megapixels takes a quarter of a gigabyte.
_DECODING = Budget(max_image_pixels)


def _decode(
    data: bytes, mode: Mode, max_pixels: int | None, working_side: int | None, scaling: Image.Resampling
) -> tuple[Pixels, tuple[int, int]]:
    """The pixels, and width and height before they were scaled."""
    max_pixels = max_image_pixels() if max_pixels is None else max_pixels
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check(image, data, max_pixels)
        with _DECODING.taken(image.width * image.height), closing(image):  # frees its memory before the next image
            return _loaded(image, data, mode, working_side, scaling)
    except UnidentifiedImageError as error:
        raise Malformed("the file is not a PNG, JPEG or WebP image; convert it to one of these") from error
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error) as error:
        raise Malformed(f"the image is broken ({error}); export it again") from error


def _loaded(
    image: Image.Image, data: bytes, mode: Mode, working_side: int | None, scaling: Image.Resampling
) -> tuple[Pixels, tuple[int, int]]:
    image.load()
    if image.format == "PNG":
        _refuse_missing_rows(data)
    image = _convert(_upright(image), mode)
    size = image.size if working_side is None else working_size(*image.size, working_side)
    return to_array(image if size == image.size else image.resize(size, scaling)), image.size


def _check(image: Image.Image, data: bytes, max_pixels: int) -> None:
    size = f"{image.width}×{image.height}"
    if image.width * image.height > max_pixels:
        raise TooLarge(f"the image has {size} pixels, more than {max_pixels}; scale it down")
    if max(image.size) > MAX_SHAPE * min(image.size):
        raise InvalidInput(f"the image has {size} pixels, more than {MAX_SHAPE} times as long as wide; cut it")
    if image.format in _JPEG and data.count(_START_OF_SCAN) > MAX_JPEG_SCANS:
        raise TooLarge(f"the JPEG has more than {MAX_JPEG_SCANS} scans; save it again, not progressive")
    if image.format not in _JPEG and (frames := getattr(image, "n_frames", 1)) > 1:
        raise InvalidInput(f"the file holds {frames} pictures (it is animated); send one as a file")
    # Pillow opens 16-bit colour PNGs as RGB with 8 bits; only the header states the true bit depth.
    if image.mode not in _CONVERTIBLE or (image.format == "PNG" and data[_PNG_BIT_DEPTH] == 16):
        raise InvalidInput(f"the image has more than 8 bits a channel (mode {image.mode}); convert it to 8 bits")


def _refuse_missing_rows(data: bytes) -> None:
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


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation. (Pillow's own function also rewrites the EXIF, which fails on odd values.)"""
    method = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if method is None else image.transpose(method)


def _convert(image: Image.Image, mode: Mode) -> Image.Image:
    if "transparency" in image.info or image.mode in ("LA", "RGBA", "PA"):
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise InvalidInput("the image has transparent pixels; flatten it onto the background you want tested")
        if mode == "L":
            raise InvalidInput("the mask has a transparency channel; save it as an 8-bit grey or palette PNG")
        return image.convert("RGB")
    if mode == "L":
        return _mask(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _mask(image: Image.Image) -> Image.Image:
    if image.mode == "P":  # indices are the classes; their palette is only for display
        return Image.frombytes("L", image.size, image.tobytes())
    if image.mode not in ("L", "1"):
        raise InvalidInput(f"the mask is in colour (mode {image.mode}); save class indices as an 8-bit grey PNG")
    return image.convert("L")
