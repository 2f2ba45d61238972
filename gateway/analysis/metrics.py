"""The two papers' metrics: accuracy at k, probability changes, error rates, all/none shares, flips."""

from __future__ import annotations

import math

import numpy as np

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.effects import Floats, Integers, Outcomes
from shared.schemas.results import Accuracy, AllOrNone, PaperMetrics

ACCURACIES = (1, 5)


def paper_metrics(outcomes: Outcomes) -> PaperMetrics:
    """All metrics of one model under test and method."""
    wrong, wrong_null = ~outcomes.counterfactual.correct, ~outcomes.null.correct
    nulls = _once(outcomes.null_arm)
    flipped = outcomes.counterfactual.predicted != outcomes.original.predicted
    flipped_null = outcomes.null.predicted != outcomes.original.predicted
    change = outcomes.counterfactual.p_truth - outcomes.original.p_truth
    change_null = (outcomes.null.p_truth - outcomes.original.p_truth)[nulls]
    return PaperMetrics(
        accuracy=[accuracy(outcomes, k) for k in ACCURACIES],
        error_rate=clustered_rate(wrong, outcomes.cluster),
        error_rate_null=clustered_rate(wrong_null[nulls], outcomes.cluster[nulls]),
        delta_probability=_mean(change),
        mean_absolute_delta_probability=_mean(np.abs(change)),
        mean_absolute_delta_probability_null=_mean(np.abs(change_null)),
        flips=clustered_rate(flipped, outcomes.cluster),
        flips_null=clustered_rate(flipped_null[nulls], outcomes.cluster[nulls]),
        all_or_none=all_or_none(outcomes),
    )


def accuracy(outcomes: Outcomes, k: int) -> Accuracy:
    """acc@k of originals (each once), null arms (each once) and counterfactuals, and LANCE's Δacc@k (eq. 3)."""
    original, null, counterfactual = (
        images.rank <= k for images in (outcomes.original, outcomes.null, outcomes.counterfactual)
    )
    firsts, nulls = _once(outcomes.source), _once(outcomes.null_arm)
    return Accuracy(
        k=k,
        originals=clustered_rate(original[firsts], outcomes.cluster[firsts]),
        nulls=clustered_rate(null[nulls], outcomes.cluster[nulls]),
        counterfactuals=clustered_rate(counterfactual, outcomes.cluster),
        delta=_mean(counterfactual.astype(float) - original),
        delta_null=_mean((null.astype(float) - original)[nulls]),
    )


def all_or_none(outcomes: Outcomes, k: int | None = None) -> AllOrNone | None:
    """Shares of source images whose first `k` counterfactuals all fail, or none of them.

    Only source images with a correct prediction on the original count. By default `k` is the largest number ≥ 2 of
    accepted counterfactuals that half of the source images have. It never depends on predictions. None if no k ≥ 2
    qualifies.
    """
    order = np.lexsort((outcomes.ordinal, outcomes.source))
    _, first, counts = np.unique(outcomes.source[order], return_index=True, return_counts=True)
    if k is None:
        sizes = [size for size in range(2, int(counts.max(initial=0)) + 1) if 2 * (counts >= size).sum() >= len(counts)]
        if not sizes:
            return None
        k = sizes[-1]
    correct = outcomes.original.correct[order][first]
    starts = first[(counts >= k) & correct]
    group = outcomes.cluster[order][starts]
    failures = (~outcomes.counterfactual.correct[order])[starts[:, None] + np.arange(k)].sum(axis=1)
    return AllOrNone(k=k, all_fail=clustered_rate(failures == k, group), none_fail=clustered_rate(failures == 0, group))


def _once(names: Integers) -> Integers:
    """The first row of each distinct name."""
    return np.unique(names, return_index=True)[1]


def _mean(values: Floats) -> float | None:
    """The mean; None for an empty array or an unknown value (NaN)."""
    mean = float(values.mean()) if len(values) else math.nan
    return None if math.isnan(mean) else mean
