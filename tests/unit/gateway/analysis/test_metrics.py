"""The papers' figures against scikit-learn and plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from gateway.analysis.effects import Floats, Integers, Originals, Outcomes, Predictions, Ranks
from gateway.analysis.funnel import EditOutcome, funnel
from gateway.analysis.metrics import accuracy, all_or_none, paper_metrics, probability_changes
from shared.schemas.effects import Cell

SOURCES, SIBLINGS, CLASSES = 40, 3, 8
RANDOM = np.random.default_rng(11)
SOURCE = np.repeat(np.arange(SOURCES), SIBLINGS)
TRUTH = RANDOM.permutation(np.arange(SOURCES) % CLASSES)


def softmax(strength: float, truth: Integers) -> Floats:
    logits = RANDOM.normal(size=(len(truth), CLASSES)) + strength * np.eye(CLASSES)[truth]
    odds = np.exp(logits)
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


ORIGINAL = softmax(3, TRUTH)
NULL = softmax(2.5, TRUTH)
COUNTERFACTUAL = softmax(1, TRUTH[SOURCE])


def reduced(probabilities: Floats, truth: Integers) -> Predictions:
    p_truth = probabilities[np.arange(len(truth)), truth]
    rank = 1 + (probabilities > p_truth[:, None]).sum(axis=1)
    return Predictions(p_truth, rank, probabilities.argmax(axis=1))


OUTCOMES = Outcomes.of(
    Ranks(
        reduced(ORIGINAL[SOURCE], TRUTH[SOURCE]),
        reduced(NULL[SOURCE], TRUTH[SOURCE]),
        reduced(COUNTERFACTUAL, TRUTH[SOURCE]),
    ),
    source=SOURCE,
    ordinal=np.tile([5, 2, 4], SOURCES),
    null_arm=SOURCE,
    cells={},
)

UNEDITED = 10  # source images without an accepted counterfactual, of which the model has half right
ORIGINALS = Originals(
    np.concatenate([reduced(ORIGINAL, TRUTH).rank, np.tile([1, CLASSES], UNEDITED // 2)]),
    np.arange(SOURCES + UNEDITED),
)


@pytest.mark.parametrize("k", [1, 5])
def test_accuracy_equals_scikit_learn(k: int) -> None:
    measured, labels = accuracy(OUTCOMES, ORIGINALS, k), np.arange(CLASSES)
    original = top_k_accuracy_score(TRUTH, ORIGINAL, k=k, labels=labels)
    null = top_k_accuracy_score(TRUTH, NULL, k=k, labels=labels)
    counterfactual = top_k_accuracy_score(TRUTH[SOURCE], COUNTERFACTUAL, k=k, labels=labels)
    assert measured.originals.value == pytest.approx(original, abs=1e-9)
    assert measured.nulls.value == pytest.approx(null, abs=1e-9)
    assert measured.counterfactuals.value == pytest.approx(counterfactual, abs=1e-9)
    assert measured.delta == pytest.approx(counterfactual - original, abs=1e-9)
    assert measured.delta_null == pytest.approx(null - original, abs=1e-9)
    assert (measured.originals.n, measured.nulls.n, measured.counterfactuals.n) == (
        SOURCES,
        SOURCES,
        SOURCES * SIBLINGS,
    )


@pytest.mark.parametrize("k", [1, 5])
def test_all_originals_are_those_without_counterfactuals_too(k: int) -> None:
    measured = accuracy(OUTCOMES, ORIGINALS, k)
    assert measured.all_originals is not None
    assert measured.all_originals.count == measured.originals.count + UNEDITED // 2
    assert measured.all_originals.n == SOURCES + UNEDITED
    assert measured.delta_all == pytest.approx(
        measured.counterfactuals.count / (SOURCES * SIBLINGS) - measured.all_originals.count / (SOURCES + UNEDITED)
    )
    assert measured.delta_all != pytest.approx(measured.delta)


def to(factor: str, value: str) -> Cell:
    return Cell(label="bus", factor=factor, value=value, direction="to")


def test_probability_changes_by_factor_equal_a_plain_loop() -> None:
    """The second sibling of each image changes weather and background: it tells nothing of either."""
    first, second, third = (np.arange(len(SOURCE))[place::SIBLINGS] for place in range(SIBLINGS))
    cells = {
        to("weather", "snow"): np.sort(np.concatenate([first[:20], second])),
        to("weather", "rain"): first[20:],
        to("background", "beach"): second,
        to("domain", "sketch"): third[:1],
    }
    changes = {change.factor: change for change in probability_changes(replace(OUTCOMES, cells=cells), 1)}
    assert list(changes) == ["domain", "weather"]
    weather = changes["weather"]
    expected = np.mean(
        [abs(COUNTERFACTUAL[row, TRUTH[SOURCE[row]]] - ORIGINAL[SOURCE[row], TRUTH[SOURCE[row]]]) for row in first]
    )
    assert (weather.n, weather.sources) == (SOURCES, SOURCES)
    assert weather.value == pytest.approx(expected, abs=1e-9)
    assert weather.null == pytest.approx(
        np.mean(np.abs(OUTCOMES.ranks.null.p_truth - OUTCOMES.ranks.original.p_truth)[first])
    )
    assert 0 <= weather.low < weather.value < weather.high <= 1
    assert (changes["domain"].n, changes["domain"].low, changes["domain"].high) == (1, 0.0, 1.0)


def test_error_rates_probabilities_and_flips() -> None:
    metrics = paper_metrics(OUTCOMES, ORIGINALS, 1)
    assert metrics.error_rate.value == pytest.approx(
        1 - accuracy_score(TRUTH[SOURCE], COUNTERFACTUAL.argmax(axis=1)), abs=1e-9
    )
    change = [
        COUNTERFACTUAL[row, TRUTH[SOURCE[row]]] - ORIGINAL[SOURCE[row], TRUTH[SOURCE[row]]]
        for row in range(len(SOURCE))
    ]
    assert metrics.delta_probability == pytest.approx(sum(change) / len(change), abs=1e-9)
    assert metrics.mean_absolute_delta_probability == pytest.approx(np.mean(np.abs(change)), abs=1e-9)
    null_change = [NULL[s, TRUTH[s]] - ORIGINAL[s, TRUTH[s]] for s in range(SOURCES)]
    assert metrics.mean_absolute_delta_probability_null == pytest.approx(np.mean(np.abs(null_change)), abs=1e-9)
    agreement = accuracy_score(ORIGINAL.argmax(axis=1)[SOURCE], COUNTERFACTUAL.argmax(axis=1))
    assert metrics.flips.value == pytest.approx(1 - agreement, abs=1e-9)
    assert metrics.flips_null.value == pytest.approx(
        1 - accuracy_score(ORIGINAL.argmax(axis=1), NULL.argmax(axis=1)), abs=1e-9
    )


@pytest.mark.parametrize("k", [2, 3])
def test_all_and_none_shares_equal_a_plain_loop(k: int) -> None:
    outcomes = {s: {} for s in range(SOURCES)}  # type: dict[int, dict[int, bool]]
    for row, source in enumerate(SOURCE):
        outcomes[int(source)][int(OUTCOMES.ordinal[row])] = bool(COUNTERFACTUAL[row].argmax() != TRUTH[source])
    right = [s for s in range(SOURCES) if ORIGINAL[s].argmax() == TRUTH[s]]
    firsts = [[outcomes[s][ordinal] for ordinal in sorted(outcomes[s])[:k]] for s in right]
    shares = all_or_none(OUTCOMES, k)
    assert shares is not None
    assert (shares.all_fail.count, shares.all_fail.n) == (sum(all(f) for f in firsts), len(right))
    assert shares.none_fail.count == sum(not any(f) for f in firsts)


def test_k_is_what_half_of_the_sources_reach() -> None:
    shares = all_or_none(OUTCOMES)
    assert shares is not None
    assert shares.k == SIBLINGS
    once, predictions = np.arange(2), reduced(ORIGINAL[:2], TRUTH[:2])
    ranks = Ranks(predictions, predictions, predictions)
    lonely = Outcomes.of(ranks, source=once, ordinal=once, null_arm=once, cells={})
    assert all_or_none(lonely) is None


def test_figures_of_nothing_are_unknown_not_zero() -> None:
    nothing = np.zeros(0, np.int64)
    empty = Predictions(np.zeros(0), nothing, nothing)
    ranks = Ranks(empty, empty, empty)
    outcomes = Outcomes.of(ranks, source=nothing, ordinal=nothing, null_arm=nothing, cells={})
    metrics = paper_metrics(outcomes, Originals(nothing, nothing), 1)
    assert metrics.error_rate.value is None
    assert metrics.delta_probability is None
    assert metrics.all_or_none is None


def test_the_funnel_separates_text_checks_from_image_checks() -> None:
    outcomes = [(False, "class words")] * 3 + [(True, "structure")] * 2 + [(True, "label"), (True, "")]
    edits = [EditOutcome(place, rendered, check) for place, (rendered, check) in enumerate(outcomes)]
    counts = funnel("dillema", edits)
    assert (counts.proposed, counts.rendered, counts.accepted.count) == (7, 4, 1)
    assert [(c.check, c.count) for c in counts.refused_by_text] == [("class words", 3)]
    assert [(c.check, c.count) for c in counts.refused_by_image] == [("structure", 2), ("label", 1)]


def test_unchecked_images_count_as_rendered() -> None:
    edits = [
        EditOutcome(0, True, "", True),
        EditOutcome(0, True, "shapes", True),
        EditOutcome(1, True, ""),
        EditOutcome(1, False, "words"),
    ]
    assert funnel("dillema", edits, shapes=True).shapes_unchecked == 1
    assert funnel("dillema", edits).shapes_unchecked is None
    edits = [EditOutcome(0, True, "", recaptioned=True), EditOutcome(0, True, ""), EditOutcome(1, False, "words")]
    assert funnel("dillema", edits, recaption=True).recaption_unchecked == 1
    assert funnel("dillema", edits).recaption_unchecked is None
