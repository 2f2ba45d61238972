"""A threshold of confidence, and confusion matrices, against plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.analysis.confusion import NO_CLASS, at_confidence, confusion, shares
from gateway.analysis.effects import Counting, Outcomes, Predictions, Ranks, differences
from gateway.analysis.findings import assess, describe
from shared.schemas.effects import Cell

CELL = Cell(label="bus", factor="weather", value="night", direction="to")
CLASSES = 3


def drawn(n: int = 60) -> Outcomes:
    """Outcomes of n pairs of n / 2 source images that share a null arm, with predictions at random."""
    random = np.random.default_rng(5)

    def predictions(per: int) -> Predictions:
        count = n // per
        predicted, confidence = random.integers(0, CLASSES, count), random.uniform(0.34, 1, count)
        rank = np.where(predicted == 0, 1, 2)
        columns = (confidence, rank, predicted, confidence)
        return Predictions(*(np.repeat(column, per) for column in columns))

    return Outcomes.of(
        Ranks(predictions(2), predictions(2), predictions(1)),
        source=np.repeat(np.arange(n // 2), 2),
        ordinal=np.tile([0, 1], n // 2),
        null_arm=np.repeat(np.arange(n // 2), 2),
        cells={CELL: np.arange(n)},
    )


def test_below_the_threshold_a_prediction_is_none_and_wrong() -> None:
    outcomes = drawn().ranks
    confident = at_confidence(drawn(), 0.7).ranks
    for before, after in (
        (outcomes.original, confident.original),
        (outcomes.null, confident.null),
        (outcomes.counterfactual, confident.counterfactual),
    ):
        assert before.confidence is not None
        is_confident = np.asarray(before.confidence >= 0.7)
        assert 0 < is_confident.sum() < len(is_confident)
        assert after.correct.tolist() == (before.correct & is_confident).tolist()
        assert after.predicted[is_confident].tolist() == before.predicted[is_confident].tolist()
        assert set(after.predicted[~is_confident].tolist()) == {NO_CLASS}
        assert after.p_truth.tolist() == before.p_truth.tolist()


def test_a_threshold_leaves_no_pair_out() -> None:
    outcomes = drawn()
    whole, at_most = differences(outcomes, outcomes.cells[CELL]), differences(at_confidence(outcomes, 1), np.arange(60))
    assert (at_most.counterfactuals, at_most.sources) == (whole.counterfactuals, whole.sources)
    assert not at_most.correct.any(), "nothing is predicted on either arm"
    assert at_confidence(outcomes, 0) is outcomes


def test_predictions_of_unknown_confidence_count_as_none() -> None:
    outcomes = drawn()
    unknown = replace(outcomes.ranks, null=replace(outcomes.ranks.null, confidence=None))
    assert not at_confidence(replace(outcomes, ranks=unknown), 0.1).null.any()


def test_described_effects_have_the_intervals_of_the_tested_ones_and_no_tests() -> None:
    cells = {CELL: differences(drawn(), np.arange(60))}
    (tested,), (described,) = assess(cells, 3), describe(cells, 3)
    assert described.delta_accuracy == tested.delta_accuracy
    assert described.interval is not None
    assert tested.interval is not None
    assert described.interval.low == pytest.approx(tested.interval.low)
    assert (described.p_value, described.q_value, described.standing) == (None, None, "nothing found")
    (few,) = describe({CELL: differences(drawn(), np.arange(8))}, 3)
    assert (few.interval, few.standing) == (None, "too few images")


def test_confusion_counts_each_original_and_each_null_arm_once() -> None:
    outcomes = at_confidence(drawn(), 0.6)
    counted = np.random.default_rng(1).random(60) < 0.7
    outcomes = replace(outcomes, counting=Counting(counted, counted))
    label = np.repeat(np.arange(30) % 2, 2)
    arms = confusion(outcomes, label, np.array([0, 1, 2]), 2, 2)  # the third class has no column: other
    expected = np.zeros((5, 2, 4), int)
    for row in range(60):
        first = not any(counted[earlier] and outcomes.source[earlier] == outcomes.source[row] for earlier in range(row))
        ranks = outcomes.ranks
        arms_of_row = (ranks.original, ranks.null, ranks.counterfactual, ranks.original, ranks.null)
        for arm, predictions in enumerate(arms_of_row):  # the last two count a pair's arms once for each pair
            if counted[row] and (arm >= 2 or first):
                predicted = predictions.predicted[row]
                expected[arm, label[row], 3 if predicted == NO_CLASS else predicted] += 1
    assert [counts.tolist() for counts in arms] == expected.tolist()
    assert arms.counterfactuals.sum() == counted.sum()
    wider = confusion(outcomes, label, np.array([0, 1, 2]), 2, 3)  # the third class has a column, and no row
    for counts, more in zip(arms, wider, strict=True):
        assert more.tolist() == np.insert(counts, 3, 0, axis=1).tolist()
    assert np.allclose(np.asarray(shares(arms.nulls)).sum(axis=1), 1)
