"""Decoding images: one canonical form, a digest over pixels, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from gateway.settings import Settings
from shared.media import images
from shared.media.admission import Budget
from shared.problems import InvalidInput, Malformed, Problem, TooLarge
from shared.service.settings import ServiceSettings
from tests.support.hostile.png import saved
from tests.support.icc_profiles import DISPLAY_P3, rgb_profile
from tests.support.memory import PeakMemory

RGB = arrays.arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12), st.just(3)))
GREY = arrays.arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)))


def gradient() -> Image.Image:
    ramp = np.arange(24 * 16 * 3, dtype=np.uint32).reshape(16, 24, 3) % 251
    return Image.fromarray(ramp.astype(np.uint8))


@given(st.one_of(RGB, GREY))
@settings(deadline=None)
def test_canonical_form_keeps_every_pixel_and_is_stable(pixels: images.Pixels) -> None:
    mode: images.Mode = "L" if pixels.ndim == 2 else "RGB"
    first = images.from_array(pixels)
    again = images.canonical(first.png, mode)
    assert again == first
    assert np.array_equal(images.decode(first.png, mode), pixels)
    assert (first.height, first.width) == pixels.shape[:2]


@given(RGB, RGB)
@settings(deadline=None)
def test_digests_are_equal_only_for_equal_pictures(first: images.Pixels, other: images.Pixels) -> None:
    assert (images.digest(first) == images.digest(other)) == (
        first.shape == other.shape and np.array_equal(first, other)
    )


def test_digest_tells_size_and_mode_apart() -> None:
    zeros = np.zeros((2, 6), np.uint8)
    digests = {images.digest(zeros), images.digest(zeros.reshape(6, 2)), images.digest(np.zeros((2, 2, 3), np.uint8))}
    assert len(digests) == 3


def test_digest_ignores_compression_and_metadata() -> None:
    plain = images.canonical(saved(gradient(), compress_level=0))
    packed = images.canonical(saved(gradient(), compress_level=9, dpi=(300, 300)))
    webp = images.canonical(saved(gradient(), "WEBP", lossless=True))
    assert plain.digest == packed.digest == webp.digest


def test_exif_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90° clockwise to show
    turned = images.canonical(saved(gradient(), exif=exif))
    assert (turned.width, turned.height) == (16, 24)
    assert np.array_equal(images.decode(turned.png), np.rot90(np.asarray(gradient()), -1))


def test_cmyk_and_grey_become_rgb() -> None:
    assert images.canonical(saved(gradient().convert("CMYK"), "JPEG")).mode == "RGB"
    assert images.canonical(saved(gradient().convert("L"))).mode == "RGB"


def test_opaque_alpha_is_dropped_and_transparency_refused() -> None:
    opaque = gradient().convert("RGBA")
    assert images.canonical(saved(opaque)).digest == images.canonical(saved(gradient())).digest
    opaque.putpixel((3, 3), (1, 2, 3, 0))
    with pytest.raises(InvalidInput, match="transparent pixels; flatten"):
        images.canonical(saved(opaque))


def test_animations_are_refused() -> None:
    frames = [gradient(), gradient().transpose(Image.Transpose.FLIP_TOP_BOTTOM)]
    with pytest.raises(InvalidInput, match="animated"):
        images.canonical(saved(frames[0], save_all=True, append_images=frames[1:]))


def test_of_a_jpeg_of_several_pictures_the_first_is_kept() -> None:
    """Cameras write a preview after the photograph (Multi-Picture Format)."""
    photograph, preview = gradient(), gradient().resize((4, 4))
    several = saved(photograph, "MPO", save_all=True, append_images=[preview], quality=95)
    assert images.canonical(several).digest == images.canonical(saved(photograph, "JPEG", quality=95)).digest


def test_pixels_are_limited_before_decoding() -> None:
    bomb = saved(Image.new("1", (30_000, 30_000)))
    with pytest.raises(TooLarge, match="more than 52000000"):
        images.canonical(bomb)
    with pytest.raises(TooLarge, match="more than 100;"):
        images.canonical(saved(gradient()), max_pixels=100)


@pytest.mark.parametrize("format", ["GIF", "JPEG2000", "PPM"])
def test_other_formats_are_refused(format: str) -> None:
    with pytest.raises(Malformed, match="PNG"):
        images.canonical(saved(gradient(), format))


def test_bmp_tiff_and_avif_are_read() -> None:
    expected = images.canonical(saved(gradient())).digest
    for format, options in (("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})):
        assert images.canonical(saved(gradient(), format, **options)).digest == expected
    assert images.canonical(saved(gradient(), "AVIF")).file_size == gradient().size
    with pytest.raises(InvalidInput, match="32 bits a channel"):
        images.canonical(saved(Image.new("F", (4, 4)), "TIFF"))
    with pytest.raises(TooLarge, match="more than 100;"):
        images.canonical(saved(gradient(), "TIFF"), max_pixels=100)


def test_masks_keep_indices_and_refuse_colour() -> None:
    classes = np.array([[0, 1, 2], [3, 255, 7]], np.uint8)
    palette = Image.fromarray(classes)
    palette.putpalette([value for index in range(256) for value in (index * 7 % 256, index * 13 % 256, 9)])
    assert palette.mode == "P"
    for mask in (palette, Image.fromarray(classes)):
        assert np.array_equal(images.decode(images.canonical(saved(mask), "L").png, "L"), classes)
    with pytest.raises(InvalidInput, match="mask is in colour"):
        images.canonical(saved(gradient()), "L")


# Pillow skips damaged EXIF data with a warning; the image then counts as upright.
@pytest.mark.filterwarnings("ignore:Corrupt EXIF", "ignore:Tag data larger than file")
@given(st.data())
@settings(deadline=None, max_examples=150)
def test_damaged_files_are_problems_never_crashes(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "BMP", "TIFF"]))
    exif = Image.Exif()
    exif[0x0112] = 3
    damaged = bytearray(saved(gradient(), format, exif=exif, icc_profile=rgb_profile(DISPLAY_P3)))
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    outcome: object = None
    try:
        outcome = images.canonical(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except Problem as problem:
        outcome = problem.status
    assert isinstance(outcome, images.CanonicalImage) or outcome in (400, 413, 422)


def test_one_variable_limits_images_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services refused what a gateway with a higher limit had taken in."""
    data = saved(gradient())
    images.max_image_pixels.cache_clear()
    monkeypatch.setenv("CONTRAFACT_MAX_IMAGE_PIXELS", "100")
    try:
        with pytest.raises(TooLarge, match="more than 100"):
            images.decode(data)
        assert ServiceSettings().max_image_pixels == Settings().max_image_pixels == 100
    finally:
        images.max_image_pixels.cache_clear()


def test_pixels_are_admitted_and_not_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    admitted: list[int] = []

    @contextmanager
    def admit(self: Budget, size: int) -> Iterator[None]:
        admitted.append(size)
        yield

    monkeypatch.setattr(Budget, "admit", admit)
    images.canonical(saved(Image.new("RGB", (400, 300))), working_side=16)
    images.decode(saved(Image.new("RGB", (20, 10))))
    assert admitted == [400 * 300, 200]


@pytest.mark.slow
def test_vast_flat_pictures_are_decoded_one_after_another() -> None:
    """Four of 40 megapixels took 2 GB: four were decoded at a time, of any size."""
    side = 5_000
    data = saved(Image.new("RGB", (side, side)))
    assert len(data) < 200_000
    memory = PeakMemory()
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda _: images.canonical(data, working_side=256), range(4)))
    assert {(image.width, image.height, image.file_size) for image in decoded} == {(256, 256, (side, side))}
    assert memory.growth() < 300 * 1024**2
