"""Image bytes in, canonical pixels out: decoding under limits, one form for every image, a digest over pixels.

Canonical is: EXIF orientation applied, 8 bits a channel, mode RGB (L for masks), lossless PNG without metadata.
What does not fit is refused in a sentence, never converted silently: transparency, 16 bits, animation.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from shared.problems import InvalidInput, Malformed, TooLarge

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 40_000_000
Mode = Literal["RGB", "L"]
Pixels = NDArray[np.uint8]
# Pillow's modes that convert to RGB without losing anything a person sees; CMYK goes through Pillow's plain formula.
_CONVERTIBLE = frozenset({"RGB", "L", "P", "1", "CMYK", "YCbCr", "LA", "RGBA", "PA"})

_PNG_BIT_DEPTH = 24  # offset in the file: 8 bytes signature, 8 chunk head, 4 width, 4 height


@dataclass(frozen=True, slots=True)
class CanonicalImage:
    """An image as Contrafact keeps it: PNG bytes, size in pixels, mode and digest."""

    png: bytes
    width: int
    height: int
    mode: Mode
    digest: str


def canonical(data: bytes, mode: Mode = "RGB", max_pixels: int = MAX_PIXELS) -> CanonicalImage:
    """Decode an upload and bring it into canonical form.

    Raises Malformed (not a PNG, JPEG or WebP, or broken), TooLarge (pixels), InvalidInput (animated, 16 bits,
    transparent pixels). A transparency channel that is opaque everywhere is dropped. For `mode` "L" (masks) the image
    must be grey or a palette of indices: values are kept as they are, not mixed from colours.
    """
    pixels = to_array(_decode(data, mode, max_pixels))
    return from_array(pixels)


def from_array(pixels: Pixels) -> CanonicalImage:
    """The canonical image of uint8 pixels, (height, width, 3) for RGB or (height, width) for L."""
    mode: Mode = "L" if pixels.ndim == 2 else "RGB"
    if pixels.dtype != np.uint8 or (mode == "RGB" and pixels.shape[2:] != (3,)) or 0 in pixels.shape:
        raise ValueError(f"pixels must be uint8, (height, width) or (height, width, 3): {pixels.dtype} {pixels.shape}")
    height, width = pixels.shape[:2]
    return CanonicalImage(encode(pixels), width, height, mode, digest(pixels))


def digest(pixels: Pixels) -> str:
    """SHA-256 (hexadecimal) over mode, size and pixels: equal for equal pictures, however they were compressed."""
    height, width = pixels.shape[:2]
    head = f"{'L' if pixels.ndim == 2 else 'RGB'} {width} {height}\n".encode()
    return hashlib.sha256(head + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def encode(pixels: Pixels) -> bytes:
    """PNG bytes of uint8 pixels, RGB or L, without metadata; the same bytes for the same pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()


def decode(png: bytes, mode: Mode = "RGB") -> Pixels:
    """Pixels of an image on the wire, as uint8 (height, width, 3) or (height, width).

    Raises what `canonical` raises: services do not trust their callers either.
    """
    return to_array(_decode(png, mode, MAX_PIXELS))


def to_array(image: Image.Image) -> Pixels:
    """A Pillow image's pixels as a writable uint8 array."""
    return np.array(image, dtype=np.uint8)


def _decode(data: bytes, mode: Mode, max_pixels: int) -> Image.Image:
    with warnings.catch_warnings():
        # Pillow's own bomb limit is another number; ours is checked before any pixel is decoded.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check(image, data, max_pixels)
            image.load()
            return _convert(ImageOps.exif_transpose(image), mode)
        except Image.DecompressionBombError as error:
            raise TooLarge(f"the image has more than {max_pixels} pixels; scale it down") from error
        except UnidentifiedImageError as error:
            raise Malformed("the file is not a PNG, JPEG or WebP image; convert it to one of these") from error
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise Malformed(f"the image is broken ({error}); export it again") from error


def _check(image: Image.Image, data: bytes, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        size = f"{image.width}×{image.height}"
        raise TooLarge(f"the image has {size} pixels, more than {max_pixels}; scale it down")
    if getattr(image, "n_frames", 1) > 1:
        raise InvalidInput("the image is animated; send one frame as an image of its own")
    # Pillow opens 16-bit colour PNGs as plain RGB, cut to 8 bits; only the header's bit depth tells.
    if image.mode not in _CONVERTIBLE or (image.format == "PNG" and data[_PNG_BIT_DEPTH] == 16):
        raise InvalidInput(f"the image has more than 8 bits a channel (mode {image.mode}); convert it to 8 bits")


def _convert(image: Image.Image, mode: Mode) -> Image.Image:
    if "transparency" in image.info or image.mode in ("LA", "RGBA", "PA"):
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise InvalidInput("the image has transparent pixels; flatten it onto the background you want tested")
        if mode == "L":
            raise InvalidInput("the mask has a transparency channel; save it as an 8-bit grey or palette PNG")
        return image.convert("RGB")
    if mode == "L":
        return _mask(image)
    return image.convert("RGB")


def _mask(image: Image.Image) -> Image.Image:
    if image.mode == "P":  # indices are the classes; their palette is only for display
        return Image.frombytes("L", image.size, image.tobytes())
    if image.mode not in ("L", "1"):
        raise InvalidInput(f"the mask is in colour (mode {image.mode}); save class indices as an 8-bit grey PNG")
    return image.convert("L")
