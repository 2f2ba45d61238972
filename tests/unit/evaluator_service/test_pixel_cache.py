"""The trainer's cache of decoded images is bounded by bytes, not by their number."""

from __future__ import annotations

import numpy as np

from evaluator_service.repair_worker import PixelCache
from shared.media.images import Mode, Pixels

SIDE = 100
IMAGE_BYTES = SIDE * SIDE * 3


class Opener:
    """Opens images of one size, or for `large` of ten times as many pixels, and notes which."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, Mode]] = []

    def __call__(self, digest: str, mode: Mode) -> Pixels:
        self.opened.append((digest, mode))
        shape = (SIDE, SIDE * (10 if digest == "large" else 1))
        return np.zeros((*shape, 3) if mode == "RGB" else shape, np.uint8)


def test_images_are_kept_up_to_a_number_of_bytes_the_latest_ones() -> None:
    opener = Opener()
    cache = PixelCache(opener, 3 * IMAGE_BYTES)
    for digest in ("a", "b", "c", "a"):
        cache.get(digest, "RGB")
    assert opener.opened == [("a", "RGB"), ("b", "RGB"), ("c", "RGB")]
    cache.get("d", "RGB")
    assert cache.bytes == 3 * IMAGE_BYTES
    cache.get("a", "RGB")
    cache.get("b", "RGB")
    assert opener.opened[3:] == [("d", "RGB"), ("b", "RGB")], "b was used longest ago"


def test_large_images_displace_many_and_too_large_ones_none() -> None:
    opener = Opener()
    cache = PixelCache(opener, 5 * IMAGE_BYTES)
    for digest in "abcde":
        cache.get(digest, "RGB")
    for _ in range(2):
        assert cache.get("large", "RGB").nbytes == 10 * IMAGE_BYTES
    assert opener.opened[5:] == [("large", "RGB")] * 2, "it does not fit at all"
    assert cache.bytes == 5 * IMAGE_BYTES
    cache.get("large", "L")
    assert cache.bytes <= 5 * IMAGE_BYTES
    assert cache.get("large", "L").ndim == 2, "a mask is another entry than an image"


def test_without_bytes_nothing_is_kept() -> None:
    opener = Opener()
    cache = PixelCache(opener, 0)
    for _ in range(2):
        cache.get("a", "RGB")
    assert len(opener.opened) == 2
    assert cache.bytes == 0
