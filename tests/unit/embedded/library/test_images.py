"""Images of a caller as RGB pixels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from embedded.library.images import pixels_of, png_of
from shared.media.images import decode
from shared.problems import InvalidInput
from tests.support.hostile.png import saved
from tests.support.icc_profiles import DISPLAY_P3, rgb_profile

PIXELS = np.random.default_rng(5).integers(0, 256, (9, 7, 3), dtype=np.uint8)


def test_every_kind_of_image_gives_the_same_pixels(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    first = np.moveaxis(PIXELS, -1, 0)
    images = [tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(PIXELS), PIXELS, PIXELS / 255]
    images += [torch.from_numpy(first.copy()), torch.from_numpy(first / 255).float()]
    images += [torch.from_numpy(first / 255).bfloat16().requires_grad_()]
    for image in images:
        assert np.array_equal(pixels_of(image), PIXELS), type(image)
        assert np.array_equal(decode(png_of(image)), PIXELS)
    assert np.array_equal(pixels_of(first, channels_first=True), PIXELS)


def test_grey_images_become_rgb() -> None:
    grey = PIXELS[:, :, 0]
    for image in (grey, grey[:, :, None], torch.from_numpy(grey)[None], Image.fromarray(grey)):
        assert np.array_equal(pixels_of(image), np.stack([grey] * 3, axis=-1))


def alpha_png(alpha: int) -> bytes:
    """An image with an alpha channel of one value."""
    channel = np.full((*PIXELS.shape[:2], 1), alpha, np.uint8)
    return saved(Image.fromarray(np.dstack([PIXELS, channel])), "PNG")


def sixteen_bits() -> bytes:
    levels = (np.arange(63, dtype=np.uint16) * 1000).reshape(9, 7)
    return saved(Image.fromarray(levels), "PNG")


def turned(kind: str) -> bytes:
    """An image that lies on its side, and whose EXIF says so."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    return saved(Image.fromarray(PIXELS), kind, exif=exif)


FILES = {
    "16 bits of grey": sixteen_bits(),
    "opaque alpha": alpha_png(255),
    "palette": saved(Image.fromarray(PIXELS).convert("P"), "PNG"),
    "JPEG on its side": turned("JPEG"),
    "PNG on its side": turned("PNG"),
    "WebP on its side": turned("WEBP"),
    "Display P3": saved(Image.fromarray(PIXELS), "PNG", icc_profile=rgb_profile(DISPLAY_P3)),
    "inks": saved(Image.fromarray(PIXELS).convert("CMYK"), "JPEG"),
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_a_pil_image_has_the_pixels_of_its_file(data: bytes, tmp_path: Path) -> None:
    """PIL images were only converted to RGB: 16 bits became white, photographs lay on their side."""
    (tmp_path / "file").write_bytes(data)
    expected = pixels_of(tmp_path / "file")
    with Image.open(tmp_path / "file") as image:
        before = image.size, np.asarray(image).copy()
        assert np.array_equal(pixels_of(image), expected)
        assert np.array_equal(decode(png_of(image)), expected)
        assert (image.size, True) == (before[0], np.array_equal(np.asarray(image), before[1])), "it is the caller's"


def test_the_rules_change_pixels() -> None:
    """Otherwise the test above could not fail."""
    for name in ("16 bits of grey", "PNG on its side", "Display P3"):
        with Image.open(io.BytesIO(FILES[name])) as image:
            assert not np.array_equal(pixels_of(image), np.asarray(image.convert("RGB"))), name


def test_hidden_colours_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "clear.png").write_bytes(alpha_png(128))
    with Image.open(tmp_path / "clear.png") as image:
        for source in (tmp_path / "clear.png", image, image.convert("RGBA").quantize()):
            with pytest.raises(InvalidInput, match="transparent pixels"):
                pixels_of(source)
    (tmp_path / "grey.png").write_bytes(saved(Image.open(io.BytesIO(sixteen_bits())), "PNG", transparency=1000))
    for source in (tmp_path / "grey.png", Image.open(tmp_path / "grey.png")):
        with pytest.raises(InvalidInput, match="transparent pixels"):
            pixels_of(source)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_images_of_32_bits_are_refused(mode: str) -> None:
    with pytest.raises(InvalidInput, match="scale it to 8 bits"):
        pixels_of(Image.fromarray(PIXELS[:, :, 0]).convert(mode))


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.moveaxis(PIXELS, -1, 0), "height × width × channels"),
        (torch.from_numpy(PIXELS), "channels × height × width"),
        (PIXELS / 255 - 0.5, "before normalisation"),
        (PIXELS.astype(np.int64), "int64"),
        ({"bytes": b"", "path": None}, "given as dict"),
        ((PIXELS, "car"), "given as tuple"),
        (None, "given as NoneType"),
        (PIXELS[:0], "no pixels"),
        (PIXELS[:0] / 255, "no pixels"),
    ],
)
def test_an_ambiguous_image_is_refused(image: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pixels_of(image)


def test_a_file_is_uploaded_as_it_is(tmp_path: Path) -> None:
    written = io.BytesIO()
    Image.fromarray(PIXELS).save(written, "JPEG")
    (tmp_path / "a.jpg").write_bytes(written.getvalue())
    assert png_of(tmp_path / "a.jpg") == written.getvalue()
