"""The papers' figures against scikit-learn and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, top_k_accuracy_score

from gateway.analysis.effects import Floats, Integers, Outcomes, Predictions
from gateway.analysis.funnel import Fate, funnel
from gateway.analysis.metrics import accuracy, all_or_none, paper_metrics

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


OUTCOMES = Outcomes(
    source=SOURCE,
    ordinal=np.tile([5, 2, 4], SOURCES),
    null_arm=SOURCE,
    original=reduced(ORIGINAL[SOURCE], TRUTH[SOURCE]),
    null=reduced(NULL[SOURCE], TRUTH[SOURCE]),
    counterfactual=reduced(COUNTERFACTUAL, TRUTH[SOURCE]),
    cells={},
)


@pytest.mark.parametrize("k", [1, 5])
def test_accuracy_equals_scikit_learn(k: int) -> None:
    found, labels = accuracy(OUTCOMES, k), np.arange(CLASSES)
    original = top_k_accuracy_score(TRUTH, ORIGINAL, k=k, labels=labels)
    null = top_k_accuracy_score(TRUTH, NULL, k=k, labels=labels)
    counterfactual = top_k_accuracy_score(TRUTH[SOURCE], COUNTERFACTUAL, k=k, labels=labels)
    assert found.originals.value == pytest.approx(original, abs=1e-9)
    assert found.nulls.value == pytest.approx(null, abs=1e-9)
    assert found.counterfactuals.value == pytest.approx(counterfactual, abs=1e-9)
    assert found.delta == pytest.approx(counterfactual - original, abs=1e-9)
    assert found.delta_null == pytest.approx(null - original, abs=1e-9)
    assert (found.originals.n, found.nulls.n, found.counterfactuals.n) == (SOURCES, SOURCES, SOURCES * SIBLINGS)


def test_error_rates_probabilities_and_flips() -> None:
    found = paper_metrics(OUTCOMES)
    assert found.error_rate.value == pytest.approx(
        1 - accuracy_score(TRUTH[SOURCE], COUNTERFACTUAL.argmax(axis=1)), abs=1e-9
    )
    change = [
        COUNTERFACTUAL[row, TRUTH[SOURCE[row]]] - ORIGINAL[SOURCE[row], TRUTH[SOURCE[row]]]
        for row in range(len(SOURCE))
    ]
    assert found.delta_probability == pytest.approx(sum(change) / len(change), abs=1e-9)
    assert found.mean_absolute_delta_probability == pytest.approx(np.mean(np.abs(change)), abs=1e-9)
    null_change = [NULL[s, TRUTH[s]] - ORIGINAL[s, TRUTH[s]] for s in range(SOURCES)]
    assert found.mean_absolute_delta_probability_null == pytest.approx(np.mean(np.abs(null_change)), abs=1e-9)
    agreement = accuracy_score(ORIGINAL.argmax(axis=1)[SOURCE], COUNTERFACTUAL.argmax(axis=1))
    assert found.flips.value == pytest.approx(1 - agreement, abs=1e-9)
    assert found.flips_null.value == pytest.approx(
        1 - accuracy_score(ORIGINAL.argmax(axis=1), NULL.argmax(axis=1)), abs=1e-9
    )


@pytest.mark.parametrize("k", [2, 3])
def test_all_and_none_shares_equal_a_plain_loop(k: int) -> None:
    outcomes = {s: {} for s in range(SOURCES)}  # type: dict[int, dict[int, bool]]
    for row, source in enumerate(SOURCE):
        outcomes[int(source)][int(OUTCOMES.ordinal[row])] = bool(COUNTERFACTUAL[row].argmax() != TRUTH[source])
    right = [s for s in range(SOURCES) if ORIGINAL[s].argmax() == TRUTH[s]]
    firsts = [[outcomes[s][ordinal] for ordinal in sorted(outcomes[s])[:k]] for s in right]
    found = all_or_none(OUTCOMES, k)
    assert found is not None
    assert (found.all_fail.count, found.all_fail.n) == (sum(all(f) for f in firsts), len(right))
    assert found.none_fail.count == sum(not any(f) for f in firsts)


def test_k_is_what_half_of_the_sources_reach() -> None:
    found = all_or_none(OUTCOMES)
    assert found is not None
    assert found.k == SIBLINGS
    once, seen = np.arange(2), reduced(ORIGINAL[:2], TRUTH[:2])
    lonely = Outcomes(once, once, once, seen, seen, seen, cells={})
    assert all_or_none(lonely) is None


def test_figures_of_nothing_are_unknown_not_zero() -> None:
    nothing = np.zeros(0, np.int64)
    empty = Predictions(np.zeros(0), nothing, nothing)
    found = paper_metrics(Outcomes(nothing, nothing, nothing, empty, empty, empty, {}))
    assert found.error_rate.value is None
    assert found.delta_probability is None
    assert found.all_or_none is None


def test_the_funnel_tells_text_from_image_checks() -> None:
    said = [(False, "class words")] * 3 + [(True, "structure")] * 2 + [(True, "label"), (True, "")]
    fates = [Fate(place, rendered, check) for place, (rendered, check) in enumerate(said)]
    found = funnel("dillema", fates)
    assert (found.proposed, found.rendered, found.accepted.count) == (7, 4, 1)
    assert [(c.check, c.count) for c in found.refused_by_text] == [("class words", 3)]
    assert [(c.check, c.count) for c in found.refused_by_image] == [("structure", 2), ("label", 1)]


def test_images_that_nobody_could_check_are_counted_among_the_rendered_ones() -> None:
    fates = [Fate(0, True, "", True), Fate(0, True, "shapes", True), Fate(1, True, ""), Fate(1, False, "words")]
    assert funnel("dillema", fates, shapes=True).shapes_unchecked == 1
    assert funnel("dillema", fates).shapes_unchecked is None
    fates = [Fate(0, True, "", recaptioned=True), Fate(0, True, ""), Fate(1, False, "words")]
    assert funnel("dillema", fates, recaption=True).recaption_unchecked == 1
    assert funnel("dillema", fates).recaption_unchecked is None
