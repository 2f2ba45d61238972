"""Images of a caller as RGB pixels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from embedded.library.images import holds_floats, pixels_of, png_of
from shared.images import decode

PIXELS = np.random.default_rng(5).integers(0, 256, (9, 7, 3), dtype=np.uint8)


def test_every_kind_of_image_gives_the_same_pixels(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    first = np.moveaxis(PIXELS, -1, 0)
    images = [tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(PIXELS), PIXELS, PIXELS / 255]
    images += [torch.from_numpy(first.copy()), torch.from_numpy(first / 255).float()]
    for image in images:
        assert np.array_equal(pixels_of(image), PIXELS), type(image)
        assert np.array_equal(decode(png_of(image)), PIXELS)
    assert np.array_equal(pixels_of(first, channels_first=True), PIXELS)


def test_grey_images_become_rgb() -> None:
    grey = PIXELS[:, :, 0]
    for image in (grey, grey[:, :, None], torch.from_numpy(grey)[None], Image.fromarray(grey)):
        assert np.array_equal(pixels_of(image), np.stack([grey] * 3, axis=-1))


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.moveaxis(PIXELS, -1, 0), "height × width × channels"),
        (torch.from_numpy(PIXELS), "channels × height × width"),
        (PIXELS / 255 - 0.5, "before normalisation"),
        (PIXELS.astype(np.int64), "int64"),
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


def test_floats_are_told_from_bytes() -> None:
    assert holds_floats(PIXELS / 255)
    assert holds_floats(torch.zeros(3, 2, 2))
    assert not holds_floats(PIXELS)
    assert not holds_floats(Image.fromarray(PIXELS))
