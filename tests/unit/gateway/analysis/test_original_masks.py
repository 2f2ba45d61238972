"""Whether a segmenter is right on its originals: what is not testable, and that weak segmenters are."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.analysis.effects import Integers
from gateway.analysis.original_masks import JudgedMasks, MaskedOriginals, judge_masks
from shared.media.label_maps import confusion

CLASSES = 4
Maps = NDArray[np.uint8]


def streets(count: int, seed: int) -> Maps:
    """Masks of 16 × 16 pixels in blocks of 4, with three quarters of class 0."""
    random = np.random.default_rng(seed)
    blocks = np.where(random.random((count, 4, 4)) < 0.75, 0, random.integers(1, CLASSES, (count, 4, 4)))
    return np.kron(blocks, np.ones((1, 4, 4), np.int64)).astype(np.uint8)


def judged(masks: Maps, predicted: Maps) -> JudgedMasks:
    counts: Integers = np.stack([confusion(*pair, CLASSES) for pair in zip(masks, predicted, strict=True)])
    group = np.arange(len(masks))
    judgement = judge_masks(
        MaskedOriginals(
            group,
            reference=counts.sum(axis=2),
            predicted=counts.sum(axis=1),
            hits=np.diagonal(counts, axis1=1, axis2=2),
            halves=np.stack([counts[group % 2 == half].sum(axis=0) for half in range(2)]),
        ),
        seed=1,
    )
    assert judgement is not None
    return judgement


def test_a_segmenter_that_finds_most_pixels_is_sound_from_12_images_on() -> None:
    masks = streets(12, 1)
    noisy = np.where(np.random.default_rng(2).random(masks.shape) < 0.9, masks, 0).astype(np.uint8)
    assert judged(masks, noisy).standing == "sound"


def test_exchanged_class_ids_are_named() -> None:
    masks = streets(20, 1)
    judgement = judged(masks, ((masks + 1) % CLASSES).astype(np.uint8))
    assert (judgement.standing, judgement.order) == ("unsound", {1: 0, 2: 1, 3: 2, 0: 3})
    two = np.choose(masks, [0, 1, 3, 2]).astype(np.uint8)
    assert (judged(masks, two).standing, judged(masks, two).order) == ("sound", {2: 3, 3: 2})


@pytest.mark.parametrize("only", [0, 1, CLASSES])
def test_a_mask_of_one_class_is_not_testable_although_most_pixels_are_right(only: int) -> None:
    masks = streets(20, 1)
    judgement = judged(masks, np.full_like(masks, only))
    assert (judgement.standing, judgement.only) == ("unsound", only)


def test_the_same_mask_for_every_image_and_masks_of_other_images_are_not_testable() -> None:
    masks = streets(60, 1)
    assert judged(masks, np.broadcast_to(masks[0], masks.shape)).standing == "unsound"
    assert judged(masks, np.roll(masks, 1, axis=0)).standing == "unsound"


def test_one_layout_scaled_to_images_of_other_sizes_is_never_sound() -> None:
    """Sky above, road below: far above chance on street scenes, and the shares of the classes differ by rounding."""
    random = np.random.default_rng(5)
    rows = []
    for number in range(30):
        height, horizon = 90 + 7 * (number % 9), random.uniform(0.35, 0.65)
        mask, fixed = (
            np.repeat(np.arange(height)[:, np.newaxis] >= at, 40, axis=1).astype(np.uint8)
            for at in (horizon * height, round(0.5 * height))
        )
        rows.append(confusion(mask, fixed, CLASSES))
    counts: Integers = np.stack(rows)
    group = np.arange(len(counts))
    halves = np.stack([counts[group % 2 == half].sum(axis=0) for half in range(2)])
    hits = np.diagonal(counts, axis1=1, axis2=2)
    judgement = judge_masks(MaskedOriginals(group, counts.sum(axis=2), counts.sum(axis=1), hits, halves), seed=1)
    assert judgement is not None
    assert (judgement.overlap.value or 0) > 0.7
    assert (judgement.standing, judgement.alike) == ("unsound", True)


@pytest.mark.slow
@pytest.mark.parametrize("images", [12, 60])
def test_weak_segmenters_are_refused_in_two_percent_at_most(images: int) -> None:
    """Two fifths of the blocks are theirs: a quarter of the way from chance to always right; 100 models a case."""
    refused, ways = 0, []
    for seed in range(100):
        masks, random = streets(images, seed), np.random.default_rng(1000 + seed)
        seen = np.kron(random.random((images, 4, 4)) < 0.4, np.ones((1, 4, 4))).astype(bool)
        judgement = judged(masks, np.where(seen, masks, np.roll(masks, 1, axis=0)))
        refused += judgement.standing == "unsound"
        ways.append(((judgement.overlap.value or 0) - judgement.chance) / (1 - judgement.chance))
    assert refused <= 2
    assert 0.2 < np.mean(ways) < 0.3
