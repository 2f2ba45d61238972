"""Each row of docs/reference/image-files.md on real files: the pixels that a file gives, or its refusal."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image, ImageCms

from shared.media.images import MAX_PROFILE_BYTES, Pixels, canonical, decode, decode_mask, max_image_pixels
from shared.problems import InvalidInput, Malformed, Problem, TooLarge
from tests.support.hostile.png import (
    GREY,
    GREY_ALPHA,
    RGB,
    RGB_ALPHA,
    chunk,
    header,
    interlaced,
    png,
    ramp,
    saved,
    scans,
)
from tests.support.icc_profiles import (
    CYAN,
    DISPLAY_P3,
    MAGENTA,
    SRGB,
    YELLOW,
    cmyk_profile,
    decoded,
    encoded,
    grey_profile,
    rgb_profile,
)
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "image-files.md"
P3 = rgb_profile(DISPLAY_P3)


@dataclass(frozen=True)
class KeptFile:
    """A file of this row of the page, which gives these pixels, each level within `tolerance`."""

    row: str
    build: Callable[[], bytes]
    pixels: Callable[[], Pixels]
    tolerance: int = 0


@dataclass(frozen=True)
class RefusedFile:
    """A file of this row of the page, which is refused."""

    row: str
    build: Callable[[], bytes]
    problem: type[Problem]
    words: str


def plain() -> Pixels:
    return np.asarray(ramp())


def smooth() -> Image.Image:
    """A picture that JPEG keeps to a few levels."""
    across, down = np.meshgrid(np.linspace(0, 255, 64), np.linspace(0, 255, 48))
    return Image.fromarray(np.stack([across, down, 255 - across], -1).astype(np.uint8))


def grey() -> Image.Image:
    return Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))


def inks() -> Image.Image:
    """White, cyan, magenta, yellow and black, as a printing press has them; 16 × 16 pixels each."""
    colours = np.zeros((16, 80, 4), np.uint8)
    for ink in range(4):
        colours[:, 16 * (ink + 1) : 16 * (ink + 2), ink] = 255
    return Image.frombytes("CMYK", (80, 16), colours.tobytes())


def stripes(*colours: tuple[int, int, int]) -> Pixels:
    return np.repeat(np.array(colours, np.uint8)[None], 16, 1).repeat(16, 0)


def without_adobe() -> bytes:
    """A CMYK JPEG without the marker that says that its values are inverted."""
    data = saved(inks(), "JPEG", quality=95)
    start = data.index(b"\xff\xee")
    return data[:start] + data[start + 2 + struct.unpack_from(">H", data, start + 2)[0] :]


def ycck() -> bytes:
    """A CMYK JPEG in luminance, two chrominances and black, as Photoshop writes it; the picture is `smooth`."""
    values = np.asarray(Image.fromarray(255 - np.asarray(smooth())).convert("YCbCr"))
    four = np.dstack([255 - values, np.zeros(values.shape[:2], np.uint8)])  # Pillow inverts what it writes
    data = saved(Image.frombytes("CMYK", smooth().size, four.tobytes()), "JPEG", quality=100, subsampling=0)
    transform = data.index(b"Adobe") + 11
    return data[:transform] + b"\2" + data[transform + 1 :]


def sixteen(colour: int, channels: int, *others: bytes) -> bytes:
    """Three levels in 16 bits: the darkest, one that is not a multiple of 257, the lightest; alpha is opaque."""
    alpha = channels in (2, 4)
    pixels = [[level] * (channels - alpha) + [0xFFFF] * alpha for level in (0, 0x80FF, 0xFFFF)]
    return png(header(3, 1, 16, colour), b"\0" + struct.pack(f">{3 * channels}H", *np.ravel(pixels)), *others)


def three_levels() -> Pixels:
    return np.array([[(0, 0, 0), (128, 128, 128), (255, 255, 255)]], np.uint8)


def in_p3() -> Pixels:
    """What `ramp` looks like if its levels are meant in Display P3."""
    to_srgb = np.linalg.inv(np.array(SRGB).T) @ np.array(DISPLAY_P3).T
    return np.round(255 * encoded(decoded(plain() / 255) @ to_srgb.T)).astype(np.uint8)


def in_gamma(gamma: float) -> Pixels:
    return np.dstack([np.round(255 * encoded((np.asarray(grey()) / 255) ** gamma))] * 3).astype(np.uint8)


def damaged_png_profile() -> bytes:
    return png(header(2, 2), bytes(14), chunk(b"iCCP", b"a\0\0" + b"rubbish"))


def half_a_profile() -> bytes:
    """A JPEG that has lost the second part of its profile."""
    data = saved(ramp(), "JPEG", icc_profile=P3)
    at = data.index(b"ICC_PROFILE\0") + 13
    return data[:at] + b"\2" + data[at + 1 :]


def exif(tag: int, value: object) -> Image.Exif:
    tags = Image.Exif()
    tags[tag] = value
    return tags


def as_rgb(mode: str) -> Pixels:
    return np.asarray(ramp().convert(mode).convert("RGB"))


def animated(format: str) -> bytes:
    return saved(ramp(), format, save_all=True, append_images=[ramp().transpose(Image.Transpose.ROTATE_180)])


def orientation(number: int, turns: int, mirrored: bool) -> KeptFile:
    return KeptFile(
        "EXIF orientation 1 to 8",
        lambda: saved(ramp(), exif=exif(0x0112, number)),
        lambda: np.rot90(plain()[:, ::-1] if mirrored else plain(), turns),
    )


KEPT = [
    KeptFile("JPEG, also progressive", lambda: saved(smooth(), "JPEG", quality=95), lambda: np.asarray(smooth()), 12),
    KeptFile(
        "JPEG, also progressive",
        lambda: saved(smooth(), "JPEG", quality=95, progressive=True),
        lambda: np.asarray(smooth()),
        12,
    ),
    KeptFile("PNG, also interlaced", lambda: saved(ramp()), plain),
    KeptFile("PNG, also interlaced", lambda: interlaced(plain()), plain),
    KeptFile("WebP", lambda: saved(ramp(), "WEBP", lossless=True), plain),
    KeptFile("WebP", lambda: saved(smooth(), "WEBP", quality=95), lambda: np.asarray(smooth()), 12),
    KeptFile("BMP, AVIF", lambda: saved(ramp(), "BMP"), plain),
    KeptFile("BMP, AVIF", lambda: saved(smooth(), "AVIF", quality=95), lambda: np.asarray(smooth()), 12),
    KeptFile("TIFF", lambda: saved(ramp(), "TIFF"), plain),
    KeptFile("grey, 1 bit, palette", lambda: saved(ramp().convert("L")), lambda: as_rgb("L")),
    KeptFile("grey, 1 bit, palette", lambda: saved(ramp().convert("1")), lambda: as_rgb("1")),
    KeptFile("grey, 1 bit, palette", lambda: saved(ramp().convert("P")), lambda: as_rgb("P")),
    orientation(1, 0, False),
    orientation(2, 0, True),
    orientation(3, 2, False),
    orientation(4, 2, True),
    orientation(5, 1, True),
    orientation(6, 3, False),
    orientation(7, 3, True),
    orientation(8, 1, False),
    KeptFile("colour profile for RGB", lambda: saved(ramp(), icc_profile=P3), in_p3, 1),
    KeptFile("colour profile for RGB", lambda: saved(ramp(), "WEBP", lossless=True, icc_profile=P3), in_p3, 1),
    KeptFile(
        "colour profile for RGB",
        lambda: saved(grey(), icc_profile=P3),
        lambda: np.asarray(grey().convert("RGB")),
        1,
    ),
    KeptFile("profile that is sRGB", lambda: saved(ramp(), icc_profile=rgb_profile(SRGB, "Camera 7")), plain),
    KeptFile(
        "profile that is sRGB",
        lambda: saved(ramp(), icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()),
        plain,
    ),
    KeptFile("colour profile for grey", lambda: saved(grey(), icc_profile=grey_profile(1.8)), lambda: in_gamma(1.8), 1),
    KeptFile(
        "colour profile for grey",
        lambda: saved(grey().convert("RGB"), icc_profile=grey_profile(1.8)),
        lambda: in_gamma(1.8),
        1,
    ),
    KeptFile(
        "CMYK JPEG with a profile",
        lambda: saved(inks(), "JPEG", quality=95, icc_profile=cmyk_profile()),
        lambda: stripes((255, 255, 255), CYAN, MAGENTA, YELLOW, (0, 0, 0)),
        6,
    ),
    KeptFile(
        "CMYK JPEG without a profile",
        lambda: saved(inks(), "JPEG", quality=95),
        lambda: stripes((255, 255, 255), (0, 255, 255), (255, 0, 255), (255, 255, 0), (0, 0, 0)),
        2,
    ),
    KeptFile(
        "CMYK JPEG without a profile",
        without_adobe,
        lambda: stripes((255, 255, 255), (0, 255, 255), (255, 0, 255), (255, 255, 0), (0, 0, 0)),
        2,
    ),
    KeptFile("YCCK JPEG", ycck, lambda: np.asarray(smooth()), 6),
    KeptFile("PNG of 16 bits a channel", lambda: sixteen(GREY, 1), three_levels),
    KeptFile("PNG of 16 bits a channel", lambda: sixteen(RGB, 3), three_levels),
    KeptFile("PNG of 16 bits a channel", lambda: sixteen(GREY_ALPHA, 2), three_levels),
    KeptFile("PNG of 16 bits a channel", lambda: sixteen(RGB_ALPHA, 4), three_levels),
    KeptFile("alpha that is opaque everywhere", lambda: saved(ramp().convert("RGBA")), plain),
    KeptFile("alpha that is opaque everywhere", lambda: saved(ramp().convert("LA")), lambda: as_rgb("L")),
    KeptFile(
        "JPEG of several pictures (MPO)",
        lambda: saved(ramp(), "MPO", save_all=True, append_images=[ramp(4, 4)], quality=95),
        lambda: decode(saved(ramp(), "JPEG", quality=95)),
    ),
    KeptFile("panorama", lambda: saved(Image.new("RGB", (1_600, 100), (1, 2, 3))), lambda: flat(100, 1_600)),
    KeptFile("panorama", lambda: saved(Image.new("RGB", (100, 1_600), (1, 2, 3))), lambda: flat(1_600, 100)),
    KeptFile(
        "other metadata",
        lambda: saved(ramp(), exif=exif(0xA001, 65_535), dpi=(300, 300), xmp=b"<x/>"),
        plain,
    ),
    KeptFile(
        "other metadata",
        lambda: png(header(2, 1), b"\0" + bytes(range(6)), chunk(b"gAMA", struct.pack(">I", 100_000))),
        lambda: np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
    ),
]

REFUSED = [
    RefusedFile("JPEG, also progressive", lambda: scans(60, 64), TooLarge, "scans"),
    RefusedFile("damaged or unfit profile", damaged_png_profile, InvalidInput, "colour profile"),
    RefusedFile("damaged or unfit profile", half_a_profile, InvalidInput, "colour profile"),
    RefusedFile("damaged or unfit profile", lambda: saved(ramp(), icc_profile=b"no"), InvalidInput, "colour profile"),
    RefusedFile("damaged or unfit profile", lambda: saved(ramp(), icc_profile=P3[:300]), InvalidInput, "profile"),
    RefusedFile(
        "damaged or unfit profile", lambda: saved(ramp(), icc_profile=cmyk_profile()), InvalidInput, "for CMYK"
    ),
    RefusedFile(
        "damaged or unfit profile", lambda: saved(ramp(), icc_profile=grey_profile(2.2)), InvalidInput, "for GRAY"
    ),
    RefusedFile("damaged or unfit profile", lambda: saved(inks(), "JPEG", icc_profile=P3), InvalidInput, "for RGB"),
    RefusedFile(
        "damaged or unfit profile",
        lambda: saved(ramp(), "JPEG", icc_profile=P3 + bytes(MAX_PROFILE_BYTES)),
        TooLarge,
        "colour profile",
    ),
    RefusedFile(
        "damaged or unfit profile",
        lambda: saved(ramp(), icc_profile=P3 + b"mpet" + bytes(8)),
        InvalidInput,
        "multi-process",
    ),
    RefusedFile(
        "transparent pixels", lambda: saved(Image.new("RGBA", (4, 4), (1, 2, 3, 9))), InvalidInput, "transparent"
    ),
    RefusedFile(
        "transparent pixels",
        lambda: saved(Image.new("RGBA", (4, 4), (1, 2, 3, 9)), "WEBP", lossless=True),
        InvalidInput,
        "transparent",
    ),
    RefusedFile(
        "transparent pixels", lambda: sixteen(GREY, 1, chunk(b"tRNS", b"\x80\xff")), InvalidInput, "transparent"
    ),
    RefusedFile("transparent pixels", lambda: sixteen(RGB, 3, chunk(b"tRNS", bytes(6))), InvalidInput, "transparent"),
    RefusedFile(
        "PNG of 16 bits a channel",
        lambda: saved(Image.fromarray(np.full((4, 4), 4095, np.uint16))),
        InvalidInput,
        "4095",
    ),
    RefusedFile(
        "PNG of 16 bits a channel",
        lambda: png(header(2, 1, 16, RGB), b"\0" + struct.pack(">6H", *(4095,) * 6)),
        InvalidInput,
        "4095",
    ),
    RefusedFile("animated PNG or WebP", lambda: animated("PNG"), InvalidInput, "animated"),
    RefusedFile("animated PNG or WebP", lambda: animated("WEBP"), InvalidInput, "animated"),
    RefusedFile("panorama", lambda: saved(Image.new("RGB", (5_100, 100))), InvalidInput, "times as long as wide"),
    RefusedFile("0.3 to 50 megapixels", lambda: saved(Image.new("1", (8_000, 6_600))), TooLarge, "scale it down"),
    RefusedFile("HEIC, GIF, JPEG 2000, JPEG XL, raw", lambda: saved(ramp(), "GIF"), Malformed, "PNG"),
    RefusedFile(
        "HEIC, GIF, JPEG 2000, JPEG XL, raw",
        lambda: struct.pack(">I", 24) + b"ftypheic" + bytes(64),
        Malformed,
        "PNG",
    ),
]


def flat(height: int, width: int) -> Pixels:
    return np.full((height, width, 3), (1, 2, 3), np.uint8)


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.row)
def test_a_file_gives_the_pixels_that_its_row_states(case: KeptFile) -> None:
    image = canonical(case.build())
    pixels, expected = decode(image.png), case.pixels()
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).max() <= case.tolerance


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.row)
def test_a_file_is_refused_as_its_row_states(case: RefusedFile) -> None:
    with pytest.raises(case.problem, match=case.words):
        canonical(case.build())


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (8_000, 500), (8_192, 6_144)])
def test_photographs_from_a_third_of_a_megapixel_to_50_are_kept(size: tuple[int, int]) -> None:
    data = saved(Image.new("RGB", size, (90, 120, 60)), "JPEG")
    image = canonical(data, working_side=2_048)
    assert image.file_size == size
    assert max(image.width, image.height) == min(max(size), 2_048)
    assert image.width * size[1] == image.height * size[0]
    assert size[0] * size[1] < max_image_pixels()


def test_a_large_photograph_is_scaled_and_converted_from_its_profile() -> None:
    large = Image.new("RGB", (400, 300), (200, 100, 50))
    pixels = decode(canonical(saved(large, icc_profile=P3), working_side=100).png)
    assert pixels.shape == (75, 100, 3)
    assert np.abs(pixels.astype(int) - (215, 93, 31)).max() <= 1


def test_values_of_masks_are_not_colours() -> None:
    """A mask's colours name its classes: a profile must not change them, and 16 bits are refused, not cut to 8."""
    values, _ = decode_mask(saved(ramp(), icc_profile=P3), "RGB", None, None)
    assert np.array_equal(values, plain())
    indices, _ = decode_mask(saved(grey(), icc_profile=grey_profile(1.8)), "L", None, None)
    assert np.array_equal(indices, np.asarray(grey()))
    with pytest.raises(InvalidInput, match="16 bits"):
        decode_mask(sixteen(GREY, 1), "L", None, None)
    with pytest.raises(InvalidInput, match="16 bits"):
        decode_mask(sixteen(RGB, 3), "RGB", None, None)


def test_the_page_has_a_row_for_each_kind_of_file_tested_here() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = {line.split("|")[1].strip() for line in lines[1:]} - {"---"}
    masks = {row for row in rows if row.startswith("mask")}
    assert rows - masks == {case.row for case in KEPT} | {case.row for case in REFUSED}
