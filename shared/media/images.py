"""Decode uploaded images under limits into one canonical form, with a digest over pixels.

Canonical form: EXIF orientation applied, 8 bits per channel, sRGB (mode L for masks), lossless PNG without metadata.
docs/reference/image-files.md states what is done with each kind of file. Images with transparency or animation are
refused with a reason. Limits on pixels, aspect ratio and JPEG scans are checked before anything is decoded. The number
of pixels that a process decodes at a time is also limited, so large images wait for one another.

Convert pixels from the colour profile of their file (ICC) to sRGB, with littlecms through Pillow.

A profile is data of a stranger: its size is limited, and a profile that littlecms cannot read, or that belongs to other
pixels, is refused. Pixels with an sRGB profile, under any name, stay unchanged.

Check the directory of a TIFF before Pillow reads it: tags may claim a file's bytes thousands of times over.

What Pillow does not tell of a PNG: its bit depth and colour type, and whether pixel data are missing.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, UnidentifiedImageError, features
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.media.admission import Budget
from shared.problems import InvalidInput, Malformed, TooLarge

_INFLATED_AT_ONCE = 1024**2  # bytes
_TWELVE_BITS = 2**12  # an image of 16 bits whose values are all below is taken for one of 12
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Offsets in a PNG: 8 bytes signature, 8 chunk head, 4 width, 4 height, then a byte each.
_PNG_SIZE, _PNG_BIT_DEPTH, _PNG_COLOUR, _PNG_INTERLACE = 16, 24, 25, 28
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_NUMBERED = (0, 3)  # colour types of PNGs with one channel: grey, palette
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
MAX_TAGS = 200
MAX_STRIPS = 100_000
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}  # bytes of each type
_STRIPS = (273, 279, 324, 325)  # offsets and lengths of strips and tiles
_TILE = (322, 323)  # width and length of a tile
MAX_PROFILE_BYTES = 4 * 1024**2  # profiles of printing presses have up to 2.5 MB, those of cameras a few kB
_SRGB_TOLERANCE = 2  # levels of 255; the sRGB profiles in use round their curves differently
_MULTI_PROCESS = b"mpet"  # a list of arbitrarily many steps, which a small file can make arbitrarily slow
_ADVICE = "save the image in sRGB, or without the profile"
_CHANNELS = {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK"}  # colour space of a profile → Pillow's mode
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


def decode_numbers(png: bytes, max_pixels: int | None = None) -> NDArray[np.uint16]:
    """The values of a PNG, height × width: grey values of up to 16 bits, or palette indices. EXIF is ignored.

    Raises InvalidInput for other files, and the errors of `canonical`.
    """
    header, max_pixels = png_header(png), max_image_pixels() if max_pixels is None else max_pixels
    if header is None or header.colour_type not in _NUMBERED:
        raise InvalidInput("a mask of instances must be a PNG with one channel, grey or with a palette; save it as one")
    try:
        image = Image.open(io.BytesIO(png), formats=("PNG",))
        _check(image, png, max_pixels, "picture")
        with _DECODING.admit(image.width * image.height), closing(image):
            image.load()
            refuse_missing_rows(png)
            values = np.array(image, np.uint16)
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error) as error:
        raise Malformed(f"the image is broken ({error}); export it again") from error
    spread = header.colour_type == 0 and image.mode == "L" and header.bits < 8  # Pillow scales them to 0 … 255
    return values // np.uint16(255 // (2**header.bits - 1)) if spread else values


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
    if meaning == "picture":
        _refuse_unscaled(image, data)
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


def _refuse_unscaled(image: Image.Image, data: bytes) -> None:
    """Refuse values of up to 12 bits stored in 16: they would be black."""
    if image.mode.startswith("I;16"):
        most = int(np.asarray(image).max())
    elif (header := png_header(data)) is not None and header.bits == 16:
        most = int(np.asarray(image.convert("RGB")).max()) << 8
    else:
        return
    if 0 < most < _TWELVE_BITS:
        raise InvalidInput(f"the image has 16 bits a channel, but no value over {most | 255}; scale it to 8 bits")


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


def in_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """The image (mode L, RGB or CMYK, 8 bits a channel) in sRGB, mode RGB.

    Relative colorimetric with black point compensation. Grey pixels may have a profile for RGB, and RGB pixels
    without colour one for grey. Raises TooLarge (bytes of the profile) and InvalidInput (not readable, or for other
    pixels).
    """
    if len(profile) > MAX_PROFILE_BYTES:
        raise TooLarge(f"the colour profile has more than {MAX_PROFILE_BYTES:,} bytes; {_ADVICE}")
    if _MULTI_PROCESS in profile:
        raise InvalidInput(f"the colour profile has multi-process elements, which are not supported; {_ADVICE}")
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        image = _for_profile(image, source.profile.xcolor_space.strip())
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            image.mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        if image.mode != "CMYK" and _is_srgb(transform, image.mode):
            return image.convert("RGB")
        return _apply(transform, image)
    except (ImageCms.PyCMSError, OSError, ValueError) as error:
        raise InvalidInput(f"the colour profile cannot be read ({error}); {_ADVICE}") from error


def _for_profile(image: Image.Image, space: str) -> Image.Image:
    """The image in the mode that the profile is for. Raises InvalidInput if that would lose something."""
    mode = _CHANNELS.get(space)
    if mode == image.mode:
        return image
    if mode == "RGB" and image.mode == "L":
        return image.convert("RGB")
    if mode == "L" and image.mode == "RGB":
        red, green, blue = image.split()
        if red.tobytes() == green.tobytes() == blue.tobytes():
            return red
    raise InvalidInput(f"the colour profile is for {space} pixels, but the image has {image.mode} pixels; {_ADVICE}")


def _is_srgb(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Whether the transform leaves an even sample of all colours as they are."""
    if mode == "L":
        probe = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    else:
        levels = np.linspace(0, 255, 9).astype(np.uint8)
        probe = Image.fromarray(np.stack(np.meshgrid(levels, levels, levels), -1).reshape(27, 27, 3))
    before, after = (np.asarray(colours, np.int16) for colours in (probe.convert("RGB"), _apply(transform, probe)))
    return bool(np.abs(before - after).max() <= _SRGB_TOLERANCE)


def _apply(transform: ImageCms.ImageCmsTransform, image: Image.Image) -> Image.Image:
    converted = ImageCms.applyTransform(image, transform)
    if converted is None:  # only a transform in place returns None
        raise ValueError("littlecms returned no image")
    return converted


def check_tiff(data: bytes, max_pixels: int) -> None:
    """Refuse a TIFF whose first directory costs more than its image. Does nothing for files of other formats.

    Raises Malformed (unreadable, BigTIFF), TooLarge (tags, strips, tiles) and InvalidInput (several pictures).
    """
    if data[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return
    if data[2:4] in (b"+\0", b"\0+"):
        raise Malformed("the file is a BigTIFF; save it as a plain TIFF or PNG")
    order = "<" if data[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(f"{order}I", data, 4)
        (count,) = struct.unpack_from(f"{order}H", data, start)
        if count > MAX_TAGS:
            raise TooLarge(f"the TIFF has {count:,} tags, more than {MAX_TAGS}; save it again")
        entries = [struct.unpack_from(f"{order}HHI4s", data, start + 2 + 12 * place) for place in range(count)]
        (following,) = struct.unpack_from(f"{order}I", data, start + 2 + 12 * count)
    except struct.error as error:
        raise Malformed("the TIFF is cut off; send it again") from error
    if following:
        raise InvalidInput("the TIFF holds several pictures; send one as a file")
    if sum(_SIZES.get(kind, 1) * number for _, kind, number, _ in entries) > len(data):
        raise TooLarge("the tags of the TIFF are larger than the file; save it again")
    if any(number > MAX_STRIPS for tag, _, number, _ in entries if tag in _STRIPS):
        raise TooLarge(f"the TIFF has more than {MAX_STRIPS:,} strips or tiles; save it again")
    sides = [
        struct.unpack(f"{order}H", value[:2])[0] if kind == 3 else struct.unpack(f"{order}I", value)[0]
        for tag, kind, _, value in entries
        if tag in _TILE
    ]
    if len(sides) == len(_TILE) and sides[0] * sides[1] > max_pixels:
        raise TooLarge(f"the TIFF has tiles of {sides[0]}×{sides[1]} pixels; save it in strips")


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
