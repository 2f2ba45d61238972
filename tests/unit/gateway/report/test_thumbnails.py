"""Pictures in the report's page: small, each loaded once, and smaller where there are many."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from gateway.report.page import HERO_SIDE
from gateway.report.thumbnails import FULL_BYTES, LONGEST_SIDE, SMALL_SIDE, EmbeddedPictures, data_uri, thumbnail

MOST_BYTES = 15_000_000  # of a report


def noise(seed: int, width: int = 400, height: int = 300) -> bytes:
    """A PNG that compresses as badly as any."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def size_of(uri: str) -> tuple[int, int]:
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return image.size


@pytest.mark.slow
def test_photographs_are_small_on_the_page() -> None:
    photograph = noise(0, 4000, 3000)
    assert size_of(data_uri(thumbnail(photograph))) == (LONGEST_SIDE, 192)
    assert size_of(data_uri(thumbnail(photograph, side=HERO_SIDE))) == (HERO_SIDE, 384)


def test_an_image_is_loaded_once_and_counts_wherever_it_stands() -> None:
    loaded: list[str] = []

    def load(digest: str) -> bytes:
        loaded.append(digest)
        return noise(int(digest))

    pictures = EmbeddedPictures(load, (), {}, full_bytes=len(data_uri(thumbnail(noise(1)))) + 1)
    first = pictures.picture("1")
    assert pictures.picture("1") == first
    assert loaded == ["1"]
    assert size_of(first) == (LONGEST_SIDE, 192)
    assert size_of(pictures.picture("2")) == (SMALL_SIDE, 96)


def test_many_pictures_that_compress_badly_fit_into_a_report() -> None:
    """More than any report has: 70 pairs, and the maps of three segmenters on each."""
    full, small = (len(data_uri(thumbnail(noise(1, 512, 512), side=side))) for side in (LONGEST_SIDE, SMALL_SIDE))
    at_full_size = FULL_BYTES / full
    assert FULL_BYTES + full + (900 - at_full_size) * small < MOST_BYTES
