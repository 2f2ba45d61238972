"""Image files: those that are refused, in which words; and odd ones that are kept, with exactly these pixels."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from shared.media.images import Pixels
from tests.support.hostile.png import (
    GREY,
    GREY_ALPHA,
    PALETTE,
    RGB,
    SIGNATURE,
    chunk,
    deflated,
    header,
    interlaced,
    jpeg_of_size,
    noise,
    png,
    ramp,
    saved,
    scans,
    webp_of_size,
)
from tests.support.icc_profiles import DISPLAY_P3, SRGB, rgb_profile

NO_IMAGE = "not a PNG, JPEG or WebP"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
XXE = b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg><text>&x;</text></svg>'
_P3 = rgb_profile(DISPLAY_P3)
PAYLOAD = b"<script>alert(document.cookie)</script><?php system($_GET[0]); ?>"


@dataclass(frozen=True)
class RefusedPicture:
    """A file that is answered with `status`, in a sentence that contains `words`."""

    name: str
    build: Callable[[], bytes]
    status: int
    words: str


@dataclass(frozen=True)
class AcceptedPicture:
    """A file that is kept as exactly these pixels, and nothing else of it."""

    name: str
    build: Callable[[], bytes]
    pixels: Callable[[], Pixels]


def _frames() -> list[Image.Image]:
    return [ramp(), ramp().transpose(Image.Transpose.FLIP_TOP_BOTTOM)]


def _animated(format: str) -> bytes:
    first, *others = _frames()
    return saved(first, format, save_all=True, append_images=others)


def _see_through() -> Image.Image:
    image = ramp().convert("RGBA")
    image.putpixel((3, 3), (1, 2, 3, 0))
    return image


def _sixteen(colour: int, channels: int) -> bytes:
    return png(header(2, 1, 16, colour), b"\0" + bytes(range(0, 16 * 2 * 2 * channels, 16)))


def _text_bomb(kind: bytes, head: bytes) -> bytes:
    return png(header(2, 2), bytes(14), chunk(kind, head + deflated(64 * 1024**2)))


def _polyglot_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../evil.sh", PAYLOAD)
    return packed.getvalue()


def _exif(tag: int, value: object) -> Image.Exif:
    exif = Image.Exif()
    exif[tag] = value
    return exif


def _tiff(*entries: tuple[int, int, int, bytes], more: bytes = b"") -> bytes:
    """EXIF of (tag, type, count, value or offset of the value) entries."""
    packed = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + packed + bytes(4) + more


def _exif_that_cannot_be_written() -> bytes:
    """Orientation 6, and a width in fractions, which Pillow reads but cannot write again."""
    orientation = (0x0112, 3, 1, struct.pack("<HH", 6, 0))
    width = (0x0100, 5, 1, struct.pack("<I", 38))
    return saved(ramp(), exif=_tiff(width, orientation, more=struct.pack("<II", 1, 3)))


def _vast() -> bytes:
    return SIGNATURE + header(30_000, 30_000, 1, GREY) + chunk(b"IDAT", deflated(64 * 1024**2)) + chunk(b"IEND", b"")


def _tiff_file(*tags: tuple[int, int, int, int]) -> bytes:
    """A TIFF without pixels, of (tag, type, count, value) entries."""
    packed = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + packed + bytes(1_000)


def _wrong_crc() -> bytes:
    return SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, RGB, 0, 0, 0), crc=1) + saved(ramp())[33:]


def _tar_inside() -> bytes:
    """A PNG with the letters of a tar at the place where a tar has them."""
    start = len(SIGNATURE) + 25 + 8
    return png(header(2, 2), bytes(14), chunk(b"teSt", bytes(257 - start) + b"ustar\x0000" + bytes(300)))


REFUSED = [
    RefusedPicture("empty", lambda: b"", 400, NO_IMAGE),
    RefusedPicture("text", lambda: b"not a picture at all", 400, NO_IMAGE),
    RefusedPicture("SVG with a script", lambda: SVG, 400, NO_IMAGE),
    RefusedPicture("SVG with an external entity", lambda: XXE, 400, NO_IMAGE),
    RefusedPicture("HTML", lambda: b"<!doctype html><img src=x onerror=alert(1)>", 400, NO_IMAGE),
    RefusedPicture("GIF", lambda: saved(ramp(), "GIF"), 400, NO_IMAGE),
    RefusedPicture("animated GIF", lambda: _animated("GIF"), 400, NO_IMAGE),
    RefusedPicture("GIF that is JavaScript", lambda: b"GIF89a=1;alert(1)//" + bytes(50), 400, NO_IMAGE),
    RefusedPicture("HEIC", lambda: b"\0\0\0\x18ftypheic" + bytes(60), 400, "save it as JPEG"),
    RefusedPicture(
        "TIFF whose tags overlap",
        lambda: _tiff_file(*((9_000 + n, 7, 900, 8) for n in range(100))),
        413,
        "larger than the file",
    ),
    RefusedPicture("TIFF of 65,535 tags", lambda: b"II*\0\x08\0\0\0\xff\xff", 413, "more than 200"),
    RefusedPicture("TIFF of two pictures", lambda: _animated("TIFF"), 422, "several pictures"),
    RefusedPicture(
        "TIFF of one huge tile", lambda: _tiff_file((322, 4, 1, 2**17), (323, 4, 1, 2**17)), 413, "tiles of"
    ),
    RefusedPicture("TIFF cut off", lambda: saved(ramp(), "TIFF")[:9], 400, "cut off"),
    RefusedPicture("BigTIFF", lambda: b"II+\0" + bytes(60), 400, "BigTIFF"),
    RefusedPicture("icon", lambda: saved(ramp(), "ICO"), 400, NO_IMAGE),
    RefusedPicture("PPM that claims a terapixel", lambda: b"P6 1000000 1000000 255\n" + bytes(9), 400, NO_IMAGE),
    RefusedPicture(
        "PostScript", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run", 400, NO_IMAGE
    ),
    RefusedPicture("PDF", lambda: b"%PDF-1.7\n" + PAYLOAD, 400, NO_IMAGE),
    RefusedPicture("XBM", lambda: b"#define a_width 9\n#define a_height 9\nstatic char a_bits[] = {0};", 400, NO_IMAGE),
    RefusedPicture("pickle", lambda: pickle.dumps({"a": 1}), 400, NO_IMAGE),
    RefusedPicture("program", lambda: b"\x7fELF\x02\x01\x01" + bytes(60), 400, NO_IMAGE),
    RefusedPicture("only a PNG's signature", lambda: SIGNATURE, 400, NO_IMAGE),
    RefusedPicture(
        "PNG without pixels", lambda: SIGNATURE + header(4, 4) + chunk(b"IEND", b""), 400, "the image is broken"
    ),
    RefusedPicture("PNG cut in half", lambda: saved(noise())[:6000], 400, "the image is broken"),
    RefusedPicture("PNG with a wrong checksum", _wrong_crc, 400, NO_IMAGE),
    RefusedPicture("PNG of no width", lambda: png(header(0, 4), bytes(4)), 400, NO_IMAGE),
    RefusedPicture(
        "PNG that claims 2³¹ × 2³¹ pixels", lambda: png(header(2**31 - 1, 2**31 - 1), bytes(9)), 413, "pixels"
    ),
    RefusedPicture("PNG of 900 megapixels in 110 kB", _vast, 413, "30000×30000"),
    RefusedPicture("PNG of 36 megapixels with one row", lambda: png(header(6000, 6000), bytes(18_001)), 400, "broken"),
    RefusedPicture(
        "PNG with a 4 GB chunk", lambda: SIGNATURE + header(4, 4) + b"\xff\xff\xff\xffIDAT" + bytes(99), 400, ""
    ),
    RefusedPicture("interlaced PNG with one row", lambda: png(header(9, 9, interlace=1), bytes(28)), 400, "broken"),
    RefusedPicture("PNG text that inflates to 64 MB", lambda: _text_bomb(b"zTXt", b"a\0\0"), 400, ""),
    RefusedPicture("PNG international text of 64 MB", lambda: _text_bomb(b"iTXt", b"a\0\1\0\0\0"), 400, ""),
    RefusedPicture("PNG colour profile of 64 MB", lambda: _text_bomb(b"iCCP", b"a\0\0"), 400, ""),
    RefusedPicture("a colour profile that is rubbish", lambda: saved(ramp(), icc_profile=PAYLOAD), 422, "profile"),
    RefusedPicture("a colour profile cut in half", lambda: saved(ramp(), icc_profile=_P3[:600]), 422, "profile"),
    RefusedPicture(
        "a colour profile of 10 MB", lambda: saved(ramp(), "JPEG", icc_profile=_P3 + bytes(10**7)), 413, "profile"
    ),
    RefusedPicture(
        "a colour profile with endless steps", lambda: saved(ramp(), icc_profile=_P3 + b"mpet" * 9), 422, "profile"
    ),
    RefusedPicture("16-bit transparency", lambda: _sixteen(GREY_ALPHA, 2), 422, "transparent pixels"),
    RefusedPicture("one transparent pixel", lambda: saved(_see_through()), 422, "transparent pixels"),
    RefusedPicture("transparent WebP", lambda: saved(_see_through(), "WEBP", lossless=True), 422, "transparent pixels"),
    RefusedPicture(
        "transparent palette", lambda: saved(ramp().convert("P"), transparency=0), 422, "transparent pixels"
    ),
    RefusedPicture(
        "a colour that means transparent", lambda: saved(ramp(), transparency=(0, 1, 2)), 422, "transparent"
    ),
    RefusedPicture("animated PNG", lambda: _animated("PNG"), 422, "2 pictures"),
    RefusedPicture("animated WebP", lambda: _animated("WEBP"), 422, "2 pictures"),
    RefusedPicture(
        "PNG that claims two thousand million frames",
        lambda: png(header(2, 2), bytes(14), chunk(b"acTL", struct.pack(">II", 2**31, 0))),
        422,
        "pictures",
    ),
    RefusedPicture("JPEG cut in half", lambda: saved(noise(), "JPEG")[:2000], 400, "the image is broken"),
    RefusedPicture("only a JPEG's beginning", lambda: b"\xff\xd8\xff", 400, NO_IMAGE),
    RefusedPicture("JPEG that claims 65,500 × 65,500 pixels", lambda: jpeg_of_size(65_500, 65_500), 413, "pixels"),
    RefusedPicture("JPEG of 500 scans", lambda: scans(500, 64), 413, "scans"),
    RefusedPicture("JPEG without tables", lambda: saved(ramp(), "JPEG").replace(b"\xff\xdb", b"\xff\xfe"), 400, ""),
    RefusedPicture("WebP cut in half", lambda: saved(noise(), "WEBP")[:1000], 400, ""),
    RefusedPicture("WebP that claims 16,384 × 16,384 pixels", lambda: webp_of_size(16_384, 16_384), 400, ""),
    RefusedPicture("1 × 20,000 pixels", lambda: saved(Image.new("RGB", (1, 20_000))), 422, "times as long as wide"),
    RefusedPicture("20,000 × 1 pixels", lambda: saved(Image.new("RGB", (20_000, 1))), 422, "times as long as wide"),
]


def _orientation(number: int, turns: int, mirrored: bool) -> AcceptedPicture:
    def pixels() -> Pixels:
        plain = np.asarray(ramp())
        return np.rot90(plain[:, ::-1] if mirrored else plain, turns)

    return AcceptedPicture(f"EXIF orientation {number}", lambda: saved(ramp(), exif=_exif(0x0112, number)), pixels)


def _plain() -> Pixels:
    return np.asarray(ramp())


def _as(mode: str) -> Pixels:
    return np.asarray(ramp().convert(mode).convert("RGB"))


def _decoded(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _cmyk() -> bytes:
    return saved(ramp().convert("CMYK"), "JPEG")


def _with_secrets() -> bytes:
    info = PngInfo()
    info.add_text("Comment", PAYLOAD.decode())
    exif = _exif(0x010E, PAYLOAD.decode())
    exif.get_ifd(0x8825)[2] = (48.0, 8.0, 0.0)
    return saved(ramp(), pnginfo=info, exif=exif, icc_profile=rgb_profile(SRGB, PAYLOAD.decode()))


ACCEPTED = [
    AcceptedPicture(
        "1 × 1 pixel", lambda: saved(Image.new("RGB", (1, 1), (7, 8, 9))), lambda: np.full((1, 1, 3), (7, 8, 9))
    ),
    AcceptedPicture("1 × 50 pixels", lambda: saved(Image.new("RGB", (1, 50))), lambda: np.zeros((50, 1, 3), np.uint8)),
    AcceptedPicture("palette", lambda: saved(ramp().convert("P")), lambda: _as("P")),
    AcceptedPicture("one bit", lambda: saved(ramp().convert("1")), lambda: _as("1")),
    AcceptedPicture("grey", lambda: saved(ramp().convert("L")), lambda: _as("L")),
    AcceptedPicture("grey with opaque alpha", lambda: saved(ramp().convert("LA")), lambda: _as("L")),
    AcceptedPicture("colour with opaque alpha", lambda: saved(ramp().convert("RGBA")), _plain),
    AcceptedPicture("CMYK", _cmyk, lambda: _decoded(_cmyk())),
    AcceptedPicture("16-bit grey", lambda: _sixteen(GREY, 1), lambda: np.array([[[0] * 3, [32] * 3]])),
    AcceptedPicture("interlaced", lambda: interlaced(np.asarray(ramp())), _plain),
    AcceptedPicture(
        "unknown critical chunk",
        lambda: png(header(2, 2), bytes(14), chunk(b"EVIL", b"x")),
        lambda: np.zeros((2, 2, 3), np.uint8),
    ),
    AcceptedPicture("lossless WebP", lambda: saved(ramp(), "WEBP", lossless=True), _plain),
    AcceptedPicture("progressive JPEG", lambda: scans(1, 32), lambda: _decoded(scans(1, 32))),
    AcceptedPicture(
        "palette with indices beyond its end",
        lambda: png(header(2, 1, 8, PALETTE), b"\0\0\xff", chunk(b"PLTE", bytes((9, 8, 7)))),
        lambda: np.asarray([[(9, 8, 7), (0, 0, 0)]]),
    ),
    AcceptedPicture(
        "pixel data that goes on for 64 MB",
        lambda: SIGNATURE + header(2, 2) + chunk(b"IDAT", deflated(64 * 1024**2)) + chunk(b"IEND", b""),
        lambda: np.zeros((2, 2, 3), np.uint8),
    ),
    _orientation(1, 0, False),
    _orientation(2, 0, True),
    _orientation(3, 2, False),
    _orientation(4, 2, True),
    _orientation(5, 1, True),
    _orientation(6, 3, False),
    _orientation(7, 3, True),
    _orientation(8, 1, False),
    AcceptedPicture("an orientation that does not exist", lambda: saved(ramp(), exif=_exif(0x0112, 99)), _plain),
    AcceptedPicture("an orientation in words", lambda: saved(ramp(), exif=_tiff((0x0112, 2, 4, b"six\0"))), _plain),
    AcceptedPicture("EXIF that is rubbish", lambda: saved(ramp(), exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), _plain),
    AcceptedPicture(
        "EXIF that cannot be written again",
        _exif_that_cannot_be_written,
        lambda: np.rot90(np.asarray(ramp()), 3),
    ),
    AcceptedPicture("a script in every kind of metadata", _with_secrets, _plain),
    AcceptedPicture("PNG that is a zip", lambda: saved(ramp()) + _polyglot_zip(), _plain),
    AcceptedPicture("PNG that is a page", lambda: saved(ramp()) + PAYLOAD, _plain),
    AcceptedPicture("PNG with the letters of a tar", _tar_inside, lambda: np.zeros((2, 2, 3), np.uint8)),
    AcceptedPicture("JPEG of several pictures", lambda: _animated("MPO"), lambda: _decoded(saved(ramp(), "JPEG"))),
    AcceptedPicture(
        "JPEG with a program in its comment",
        lambda: saved(ramp(), "JPEG", comment=PAYLOAD, quality=95),
        lambda: _decoded(saved(ramp(), "JPEG", quality=95)),
    ),
    AcceptedPicture(
        "WebP with more after its end",
        lambda: saved(ramp(), "WEBP", lossless=True) + PAYLOAD + zlib.compress(PAYLOAD),
        _plain,
    ),
]
