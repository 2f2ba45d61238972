"""Decode uploaded images under limits into one canonical form, with a digest over pixels.

Canonical form: EXIF orientation applied, 8 bits per channel, sRGB (mode L for masks), lossless PNG without metadata.
docs/reference/image-files.md states what is done with each kind of file. Images with transparency or animation are
refused with a reason. Limits on pixels, aspect ratio and JPEG scans are checked before anything is decoded. The number
of pixels that a process decodes at a time is also limited, so large images wait for one another.
"""

from __future__ import annotations

import hashlib
import io
import re
import zlib
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError, features
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.admission import Budget
from shared.colour_profiles import in_srgb
from shared.png_files import png_header, refuse_missing_rows
from shared.problems import InvalidInput, Malformed, TooLarge
from shared.tiff_files import check_tiff

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", *(("AVIF",) if features.check("avif") else ()))
# Beginnings of files that people take for images, with what they are and what to do.
_OTHER_FORMATS = (
    (re.compile(rb".{4}ftyp(hei[cxms]|hev[cx]|mif1|msf1)", re.DOTALL), "HEIC, which cameras write", "save it as JPEG"),
    (re.compile(rb".{4}ftypavi[fs]", re.DOTALL), "AVIF, which this Pillow cannot read", "save it as PNG"),
    (re.compile(rb"GIF8"), "a GIF", "save it as PNG"),
    (re.compile(rb"\0{3}\x0cjP  |\xff\x4f\xff\x51"), "JPEG 2000", "save it as PNG"),
    (re.compile(rb"\0{3}\x0cJXL |\xff\x0a"), "JPEG XL", "save it as PNG"),
    (re.compile(rb"8BPS"), "a Photoshop document", "save it as PNG"),
    (re.compile(rb"version https://git-lfs"), "a pointer of Git LFS", "run git lfs pull"),
)
MAX_SHAPE = 50  # long side / short side; models scale the short side up to their size, and the long side with it
MAX_JPEG_SCANS = 50  # decoding visits the whole image once per scan, and a scan may have only a hundred bytes
# glibc returns blocks of more than 32 MiB to the system; each thread that decoded an image keeps smaller ones.
Image.core.set_block_size(64 * 1024**2)  # type: ignore[attr-defined]
Image.MAX_IMAGE_PIXELS = None  # replaced by our own limit, which is checked before any pixel is decoded
Mode = Literal["RGB", "L"]
Pixels = NDArray[np.uint8]
# A picture is in colours that people see: it is converted to sRGB and scaled smoothly. Values (of masks) are kept.
Meaning = Literal["picture", "values"]
_SCALING = {"picture": Image.Resampling.LANCZOS, "values": Image.Resampling.NEAREST}

_WITH_ALPHA = ("LA", "RGBA", "PA")
_OPAQUE_MODES = {"1": "L", "L": "L", "LA": "L", "CMYK": "CMYK"}  # other modes become RGB
_TRANSPARENT = "the image has transparent pixels; flatten it onto the background you want tested"

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # the transposition that undoes each EXIF orientation
_JPEG = ("JPEG", "MPO")  # cameras write a preview after the photograph (MPO); the first picture is used
_START_OF_SCAN = b"\xff\xda"


class ImageSettings(BaseSettings):
    """The image limit of every process: gateway, worker, model services and trainer."""

    model_config = SettingsConfigDict(env_prefix="CONTRAFACT_", extra="ignore", use_attribute_docstrings=True)

    max_image_pixels: Annotated[int, Field(ge=1)] = 52_000_000
    """Width × height of the largest image; also the pixels that one process decodes at a time."""


@dataclass(frozen=True, slots=True)
class CanonicalImage:
    """An image as Contrafact keeps it: PNG bytes, size in pixels, mode and digest.

    `file_size`: width and height before it was scaled. `orientation`: the file's EXIF orientation, 1 if it has none.
    """

    png: bytes
    width: int
    height: int
    mode: Mode
    digest: str
    file_size: tuple[int, int]
    orientation: int = 1


def canonical(
    data: bytes, mode: Mode = "RGB", max_pixels: int | None = None, working_side: int | None = None
) -> CanonicalImage:
    """Decode an upload and convert it to canonical form.

    An image whose longer side exceeds `working_side` pixels is scaled down to it (RGB by Lanczos). Colours are
    converted from the file's ICC profile to sRGB, 16 bits a channel to 8. Raises Malformed (none of `FORMATS`, or
    broken), TooLarge (pixels, scans, profile), InvalidInput (too elongated, animated, transparent pixels, unreadable
    profile). An alpha channel that is opaque everywhere is dropped. For `mode` "L" (masks) the image must be grey or a
    palette of indices, of 8 bits: values are kept as they are. `max_pixels`: width × height; default
    CONTRAFACT_MAX_IMAGE_PIXELS.
    """
    decoded = _decode(data, mode, max_pixels, working_side, "picture" if mode == "RGB" else "values")
    return replace(from_array(decoded.pixels, decoded.file_size), orientation=decoded.orientation)


def from_array(pixels: Pixels, file_size: tuple[int, int] | None = None) -> CanonicalImage:
    """Return the canonical image of uint8 pixels, (height, width, 3) for RGB or (height, width) for L.

    `file_size`: width and height of the file that they were read from, if they were scaled.
    """
    mode: Mode = "L" if pixels.ndim == 2 else "RGB"
    if pixels.dtype != np.uint8 or (mode == "RGB" and pixels.shape[2:] != (3,)) or 0 in pixels.shape:
        raise ValueError(f"pixels must be uint8, (height, width) or (height, width, 3): {pixels.dtype} {pixels.shape}")
    height, width = pixels.shape[:2]
    return CanonicalImage(encode(pixels), width, height, mode, digest(pixels), file_size or (width, height))


def from_pillow(image: Image.Image) -> Pixels:
    """The pixels (height × width × 3) that `canonical` gives for the file of a Pillow image, which stays as it is.

    Raises as `canonical` does for what it refuses of pixels and profile, and InvalidInput for 32 bits a channel.
    """
    _refuse_32_bits(image)
    image.load()
    return _convert(image.copy(), "RGB", None, "picture").pixels


def _refuse_32_bits(image: Image.Image) -> None:
    if image.mode in ("I", "F"):
        raise InvalidInput(f"the image has 32 bits a channel (mode {image.mode}); scale it to 8 bits")


def digest(pixels: Pixels) -> str:
    """SHA-256 (hexadecimal) over mode, size and pixels: equal pixels have equal digests under any compression."""
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
    return _decode(png, mode, max_pixels, None, "picture" if mode == "RGB" else "values").pixels


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

    It is scaled to the size to which `canonical` scales its image, but each pixel takes the value at its centre, and a
    colour profile is ignored, so values never change. Raises as `canonical` does, also for 16 bits a channel.
    """
    decoded = _decode(png, mode, max_pixels, working_side, "values")
    return decoded.pixels, decoded.file_size


def to_array(image: Image.Image) -> Pixels:
    """A Pillow image's pixels as a writable uint8 array."""
    return np.array(image, dtype=np.uint8)


@cache
def max_image_pixels() -> int:
    """CONTRAFACT_MAX_IMAGE_PIXELS."""
    return ImageSettings().max_image_pixels


# The pixels that this process may decode at a time: an image of 50 megapixels takes 0.3 GB, a turned one 0.45.
_DECODING = Budget(max_image_pixels)


class _Decoded(NamedTuple):
    """Upright pixels, their width and height before they were scaled, and the file's EXIF orientation, 1 to 8."""

    pixels: Pixels
    file_size: tuple[int, int]
    orientation: int


def _decode(data: bytes, mode: Mode, max_pixels: int | None, working_side: int | None, meaning: Meaning) -> _Decoded:
    max_pixels = max_image_pixels() if max_pixels is None else max_pixels
    try:
        check_tiff(data, max_pixels)
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check(image, data, max_pixels, meaning)
        with _DECODING.admit(image.width * image.height), closing(image):  # frees its memory before the next image
            return _load(image, data, mode, working_side, meaning)
    except UnidentifiedImageError as error:
        raise Malformed(_no_image(data)) from error
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error) as error:
        raise Malformed(f"the image is broken ({error}); export it again") from error


def _no_image(data: bytes) -> str:
    """Why a file is no image that Contrafact decodes."""
    for head, name, advice in _OTHER_FORMATS:
        if head.match(data):
            return f"the file is {name}, not a PNG, JPEG or WebP, BMP, TIFF or AVIF; {advice}"
    return "the file is not a PNG, JPEG or WebP image, nor BMP, TIFF or AVIF; convert it to one of these"


def _load(image: Image.Image, data: bytes, mode: Mode, working_side: int | None, meaning: Meaning) -> _Decoded:
    image.load()
    if image.format == "PNG":
        refuse_missing_rows(data)
    return _convert(image, mode, working_side, meaning)


def _convert(image: Image.Image, mode: Mode, working_side: int | None, meaning: Meaning) -> _Decoded:
    """The pixels of a loaded image, which is closed where that frees memory."""
    profile = _profile(image) if meaning == "picture" else None
    orientation = _orientation(image)
    image = _upright(image, orientation)
    image = _mask(image) if mode == "L" else _opaque(image)
    if image.mode == "CMYK" and profile is None:
        image = image.convert("RGB")
    file_size = image.size
    size = file_size if working_side is None else working_size(*file_size, working_side)
    image = image if size == file_size else image.resize(size, _SCALING[meaning])
    if profile is not None:
        image = in_srgb(image, profile)  # after scaling: it takes longer than the decoding
    pixels = to_array(image if image.mode == mode else image.convert(mode))
    return _Decoded(pixels, file_size, orientation)


def _check(image: Image.Image, data: bytes, max_pixels: int, meaning: Meaning) -> None:
    size = f"{image.width}×{image.height}"
    if image.width * image.height > max_pixels:
        raise TooLarge(f"the image has {size} pixels, more than {max_pixels}; scale it down")
    if max(image.size) > MAX_SHAPE * min(image.size):
        raise InvalidInput(f"the image has {size} pixels, more than {MAX_SHAPE} times as long as wide; cut it")
    if image.format in _JPEG and data.count(_START_OF_SCAN) > MAX_JPEG_SCANS:
        raise TooLarge(f"the JPEG has more than {MAX_JPEG_SCANS} scans; save it again, not progressive")
    if image.format not in _JPEG and (frames := getattr(image, "n_frames", 1)) > 1:
        raise InvalidInput(f"the file holds {frames} pictures (it is animated); send one as a file")
    _refuse_32_bits(image)
    # Pillow opens 16-bit colour PNGs as RGB with 8 bits; only the header states the true bit depth.
    if (header := png_header(data)) is not None and header.bits == 16:
        if meaning == "values":
            raise InvalidInput("the mask has 16 bits a channel; save it as a PNG of 8 bits, at most 256 classes")
        if "transparency" in image.info:
            raise InvalidInput(_TRANSPARENT)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 for other values."""
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return int(orientation) if orientation in _UPRIGHT else 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    """Undo the EXIF orientation. (Pillow's own function also rewrites the EXIF, which fails on odd values.)"""
    if orientation == 1:
        return image
    turned = image.transpose(_UPRIGHT[orientation])
    image.close()  # frees its memory
    return turned


def _profile(image: Image.Image) -> bytes | None:
    """The file's ICC profile. Raises InvalidInput for one that arrived damaged (Pillow then has None)."""
    if "icc_profile" not in image.info:
        return None
    if not (profile := image.info["icc_profile"]):
        raise InvalidInput("the colour profile is damaged; save the image in sRGB, or without the profile")
    return bytes(profile)


def _opaque(image: Image.Image) -> Image.Image:
    """The image as L, RGB or CMYK of 8 bits. Raises InvalidInput for transparent pixels."""
    if image.mode.startswith("I;16"):  # the upper byte, as Pillow reads colours of 16 bits
        if "transparency" in image.info:
            raise InvalidInput(_TRANSPARENT)
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image if image.mode in _WITH_ALPHA else image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise InvalidInput(_TRANSPARENT)
    mode = _OPAQUE_MODES.get(image.mode, "RGB")
    return image if image.mode == mode else image.convert(mode)


def _mask(image: Image.Image) -> Image.Image:
    if "transparency" in image.info or image.mode in _WITH_ALPHA:
        _opaque(image)
        raise InvalidInput("the mask has a transparency channel; save it as an 8-bit grey or palette PNG")
    if image.mode == "P":  # indices are the classes; their palette is only for display
        return Image.frombytes("L", image.size, image.tobytes())
    if image.mode not in ("L", "1"):
        raise InvalidInput(f"the mask is in colour (mode {image.mode}); save class indices as an 8-bit grey PNG")
    return image.convert("L")
