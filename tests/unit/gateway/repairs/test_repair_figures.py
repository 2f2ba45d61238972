"""Intervals of a repair's figures: their unit is the group of source images, where they have one."""

from __future__ import annotations

import hashlib

import numpy as np

from gateway.repairs.figures import figures, recovery, share_interval
from gateway.repairs.orders import Original, RenderedImage, order_of
from shared.schemas.repairs import ARMS, Judgement, RepairOrder, RepairOutcome, RepairRequest, RepairResult

LABELS = ("car", "bus")


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def order_with(sequences: int, frames: int, *, grouped: bool) -> RepairOrder:
    """Sequences of equal length of two classes, each image with a counterfactual, half of them held out."""
    images = range(sequences * frames)
    originals = [
        Original(digest(n), LABELS[n // frames % 2], group=str(n // frames) if grouped else None) for n in images
    ]
    edits = [RenderedImage(digest(1_000 + n), digest(n), "m", False, ("weather",), ("night",)) for n in images]
    return order_of("a", "b", RepairRequest(model="m", held_out=0.5), "", None, originals, edits)


def figures_of(order: RepairOrder, frames: int) -> RepairResult:
    """The model loses a third of the sequences at night, all frames of each; the repair wins half of these back."""
    sequence = {digest(n): n // frames for n in range(1_000)}
    night = np.array([example.set != "originals" for example in order.judged])
    place = np.array([sequence[example.source] for example in order.judged])
    right = {arm: ~night | (place % 3 > 0) | ((arm == "repaired") & (place % 2 == 0)) for arm in ARMS}
    labels = [example.label for example in order.judged]
    judgements = {
        arm: Judgement(scores=[{label: float(is_right)} for label, is_right in zip(labels, right[arm], strict=True)])
        for arm in ARMS
    }
    return figures(order, RepairOutcome(judgements=judgements))


def test_the_frames_of_a_sequence_count_as_one() -> None:
    """As if there were one frame of each: frames alone would make every interval too short."""
    result = figures_of(order_with(60, 5, grouped=True), 5)
    by_set = {of_set.set: of_set for of_set in result.sets}
    night = by_set["counterfactuals"].arms[0]
    assert (by_set["counterfactuals"].sources, night.accuracy.sources) == (150, 30)
    change = next(arm for arm in by_set["counterfactuals"].arms if arm.arm == "repaired").against_before
    assert change is not None
    assert change.interval is not None
    alone = figures_of(order_with(150, 2, grouped=False), 2)
    change_alone = next(arm for arm in alone.sets[1].arms if arm.arm == "repaired").against_before
    assert change_alone is not None
    assert change_alone.interval is not None
    assert change.sources == change_alone.sources == 150
    assert change.interval.high - change.interval.low > 1.5 * (change_alone.interval.high - change_alone.interval.low)


def test_lost_images_that_are_regained_are_counted_and_newly_lost_ones_apart() -> None:
    """The interval of a share near 1, by percentile bootstrap, had no width in a third of the tables."""
    source = np.arange(36) // 3
    before = np.arange(36) % 3 > 0
    repaired = np.arange(36) != 1
    regained, newly_lost = recovery(np.ones(36, bool), before, repaired, source)
    assert (regained.count, regained.n, regained.sources) == (12, 12, 12)
    assert (newly_lost.count, newly_lost.n) == (1, 24)
    assert regained.low < 0.8
    assert regained.high == 1
    won = figures_of(order_with(60, 5, grouped=True), 5)
    assert won.won_back is not None
    assert won.won_back.regained is not None
    of = won.won_back.regained
    assert f"Won back: {of.count} of {of.n}" in won.sentences[-1]


def test_the_interval_of_the_regained_share_covers_it() -> None:
    """12 source images of 3 counterfactuals each, of which those of one source image are alike; 200 repairs."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        of_source = random.beta(1.6, 0.4, 12)[:, None]
        repaired = (random.random((12, 3)) < of_source).ravel()
        rate, _ = recovery(np.ones(36, bool), np.zeros(36, bool), repaired, np.arange(36) // 3)
        covered += rate.low <= 0.8 <= rate.high
    assert covered >= 186


def test_a_share_of_an_uncertain_loss_has_no_interval() -> None:
    gained, lost = np.array([0.2, 0.1, 0.3, 0.2]), np.array([0.4, 0.3, 0.5, 0.4])
    limits = share_interval(gained, lost)
    assert limits is not None
    assert limits[0] < 0.5 < limits[1]
    assert share_interval(gained, np.array([0.4, -0.3, 0.2, -0.3])) is None


def test_fewer_than_twelve_groups_have_no_interval() -> None:
    result = figures_of(order_with(20, 5, grouped=True), 5)
    assert {arm.against_before.interval for of_set in result.sets for arm in of_set.arms if arm.against_before} == {
        None
    }
    assert (result.cells, result.won_back) == ([], None)
    assert result.sentences[-1].startswith("Too few images"), "nothing to win back was said"
