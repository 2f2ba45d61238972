"""The two papers' metrics: accuracy at k, probability changes, error rates, all/none shares, flips."""

from __future__ import annotations

import math

import numpy as np

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.analysis.effects import Floats, Integers, Originals, Outcomes, Units
from shared.schemas.effects import ProbabilityChange
from shared.schemas.metrics import Accuracy, AllOrNone, PaperMetrics

ACCURACIES = (1, 5)


def paper_metrics(outcomes: Outcomes, originals: Originals, seed: int) -> PaperMetrics:
    """All metrics of one model under test and method. `originals`: all source images; `seed`: for intervals."""
    ranks = outcomes.ranks
    wrong, wrong_null = ~ranks.counterfactual.correct, ~ranks.null.correct
    nulls = _once(outcomes.null_arm)
    flipped = ranks.counterfactual.predicted != ranks.original.predicted
    flipped_null = ranks.null.predicted != ranks.original.predicted
    change = ranks.counterfactual.p_truth - ranks.original.p_truth
    change_null = (ranks.null.p_truth - ranks.original.p_truth)[nulls]
    return PaperMetrics(
        accuracy=[accuracy(outcomes, originals, k) for k in ACCURACIES],
        error_rate=clustered_rate(wrong, outcomes.cluster),
        error_rate_null=clustered_rate(wrong_null[nulls], outcomes.cluster[nulls]),
        delta_probability=_mean(change),
        mean_absolute_delta_probability=_mean(np.abs(change)),
        mean_absolute_delta_probability_null=_mean(np.abs(change_null)),
        flips=clustered_rate(flipped, outcomes.cluster),
        flips_null=clustered_rate(flipped_null[nulls], outcomes.cluster[nulls]),
        all_or_none=all_or_none(outcomes),
        probability_changes=probability_changes(outcomes, seed),
    )


def accuracy(outcomes: Outcomes, originals: Originals, k: int) -> Accuracy:
    """acc@k of originals (each once), null arms (each once) and counterfactuals, and two forms of Δacc@k.

    `delta_all` compares their accuracy with that of all originals (LANCE, equation 3), `delta` each counterfactual with
    its own original.
    """
    original, null, counterfactual = (
        images.rank <= k for images in (outcomes.ranks.original, outcomes.ranks.null, outcomes.ranks.counterfactual)
    )
    firsts, nulls = _once(outcomes.source), _once(outcomes.null_arm)
    of_all = clustered_rate(originals.rank <= k, originals.group)
    of_edits = clustered_rate(counterfactual, outcomes.cluster)
    return Accuracy(
        k=k,
        originals=clustered_rate(original[firsts], outcomes.cluster[firsts]),
        nulls=clustered_rate(null[nulls], outcomes.cluster[nulls]),
        counterfactuals=of_edits,
        delta=_mean(counterfactual.astype(float) - original),
        delta_null=_mean((null.astype(float) - original)[nulls]),
        all_originals=of_all,
        delta_all=None if of_edits.value is None or of_all.value is None else of_edits.value - of_all.value,
    )


def probability_changes(outcomes: Outcomes, seed: int) -> list[ProbabilityChange]:
    """Mean |Δp(ground truth)| by the factor that an edit changes (LANCE, figure 3), each with an interval over sources.

    Edits that change several factors at once, and those with an unknown probability, do not count.
    """
    ranks, factors = outcomes.ranks, sorted({cell.factor for cell in outcomes.cells})
    changed = np.zeros((len(factors), len(outcomes.source)), bool)
    for cell, rows in outcomes.cells.items():
        changed[factors.index(cell.factor), rows] = True
    change, change_null = (
        np.abs(images.p_truth - ranks.original.p_truth) for images in (ranks.counterfactual, ranks.null)
    )
    single = (changed.sum(axis=0) == 1) & ~np.isnan(change) & ~np.isnan(change_null)
    changes = []
    for factor, of_factor in zip(factors, changed & single, strict=True):
        if not of_factor.any():
            continue
        units = Units.of(outcomes.source[of_factor], outcomes.cluster[of_factor])
        means = units.means(change[of_factor])
        interval = mean_interval(means, LEVEL, seed) if len(means) > 1 else None
        changes.append(
            ProbabilityChange(
                factor=factor,
                n=int(of_factor.sum()),
                sources=units.sources,
                value=float(means.mean()),
                low=max(0.0, interval.low) if interval else 0.0,
                high=interval.high if interval else 1.0,
                null=float(units.means(change_null[of_factor]).mean()),
            )
        )
    return changes


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
    correct = outcomes.ranks.original.correct[order][first]
    starts = first[(counts >= k) & correct]
    group = outcomes.cluster[order][starts]
    failures = (~outcomes.ranks.counterfactual.correct[order])[starts[:, None] + np.arange(k)].sum(axis=1)
    return AllOrNone(k=k, all_fail=clustered_rate(failures == k, group), none_fail=clustered_rate(failures == 0, group))


def _once(names: Integers) -> Integers:
    """The first row of each distinct name."""
    return np.unique(names, return_index=True)[1]


def _mean(values: Floats) -> float | None:
    """The mean; None for an empty array or an unknown value (NaN)."""
    mean = float(values.mean()) if len(values) else math.nan
    return None if math.isnan(mean) else mean
