"""Errors of the checks from a random sample of rendered edits, accepted and rejected alike, that people judged.

    P(accepted | invalid) and P(rejected | valid), with Wilson intervals, by factor and over all factors

The sample is a simple random sample of a method's rendered edits, so both rates are observed directly and need no
correction for verification bias (Begg & Greenes 1983). Thresholds are fitted on half of the source images and judged on
the other half, and the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from scipy.stats import norm

from gateway.analysis.certainty import LEVEL, clustered_rate, effective_trials
from gateway.analysis.effects import Integers
from gateway.analysis.thresholds import (
    VALID,
    Booleans,
    ScoredImages,
    auroc,
    changes_factor,
    fit_by_factor,
    held_out_margins,
)
from gateway.analysis.validity import is_measured
from gateway.analysis.validity_model import (
    SignalSample,
    fit_model,
    held_out_accepted,
    held_out_probabilities,
    lowest_probability,
)
from shared.schemas.calibration import CheckErrorRates, ClassErrorRates, FittedThresholds, FittedValidity
from shared.schemas.effects import CheckErrors, Rate
from shared.schemas.validity import VALIDITY

LEAST_OF_EACH = 10  # valid images, and as many invalid ones, from which errors are reported
LEAST_IN_HALF = 8  # the same in each half, from which thresholds are fitted
ROUND = 25  # images that a reviewer judges in one go, once there are enough


@dataclass(frozen=True, slots=True)
class JudgedSample:
    """n randomly sampled edits of one method: whether each is valid and accepted, its group, the factors it changes.

    `labels`: the class of each (None: unknown), or nothing.
    """

    valid: Booleans
    accepted: Booleans
    group: Integers
    factors: Sequence[tuple[str, ...]]
    labels: Sequence[str | None] = ()

    def subset(self, chosen: Booleans) -> JudgedSample:
        """The edits of a mask of length n."""
        return JudgedSample(
            self.valid[chosen],
            self.accepted[chosen],
            self.group[chosen],
            list(compress(self.factors, chosen)),
            list(compress(self.labels, chosen)),
        )

    def by_factor(self) -> dict[str, JudgedSample]:
        """The edits that change each factor, in the order of their names."""
        names = sorted({name for factors in self.factors for name in factors})
        return {name: self.subset(changes_factor(self.factors, name)) for name in names}

    def by_class(self) -> dict[str, JudgedSample]:
        """The edits of each class, in the order of their names."""
        names = sorted({name for name in self.labels if name is not None})
        return {name: self.subset(np.array([label == name for label in self.labels], np.bool_)) for name in names}

    @property
    def sufficient(self) -> bool:
        """Whether there are enough valid and enough invalid edits to report errors."""
        valid = int(self.valid.sum())
        return min(valid, len(self.valid) - valid) >= LEAST_OF_EACH


def error_rates(sample: JudgedSample) -> list[CheckErrorRates]:
    """The errors over all factors (first, with `factor` None), then of each factor in the sample.

    A factor with too few valid or invalid edits gets the counts of all factors in `errors`; None if these are too few.
    """
    pooled = _rates(None, sample, _counts(sample) if sample.sufficient else None, is_pooled=False)
    rates = [pooled]
    for factor, sample_of_factor in sample.by_factor().items():
        errors = _counts(sample_of_factor) if sample_of_factor.sufficient else pooled.errors
        rates.append(_rates(factor, sample_of_factor, errors, is_pooled=not sample_of_factor.sufficient))
    return rates


def class_error_rates(sample: JudgedSample) -> list[ClassErrorRates]:
    """The errors of each class over all factors; none without labels."""
    return [_class_rates(label, of_class) for label, of_class in sample.by_class().items()]


def _class_rates(label: str, sample: JudgedSample) -> ClassErrorRates:
    counts = _counts(sample) if sample.sufficient else None
    return ClassErrorRates(
        label=label,
        images=len(sample.valid),
        rejected_if_valid=_rate(~sample.accepted[sample.valid], sample.group[sample.valid]),
        accepted_if_invalid=_rate(sample.accepted[~sample.valid], sample.group[~sample.valid]),
        errors=counts if counts is not None and is_measured(counts) else None,
    )


def _rates(factor: str | None, sample: JudgedSample, errors: CheckErrors | None, *, is_pooled: bool) -> CheckErrorRates:
    return CheckErrorRates(
        factor=factor,
        images=len(sample.valid),
        rejected_if_valid=_rate(~sample.accepted[sample.valid], sample.group[sample.valid]),
        accepted_if_invalid=_rate(sample.accepted[~sample.valid], sample.group[~sample.valid]),
        errors=errors,
        pooled=is_pooled and errors is not None,
    )


def _rate(hits: Booleans, group: Integers) -> Rate:
    if not len(hits):
        return Rate(count=0, n=0, value=None, low=0.0, high=1.0, sources=0)
    return clustered_rate(hits, group)


def _counts(sample: JudgedSample) -> CheckErrors:
    """The counts that a profile stores: effective numbers of independent images."""
    valid, valid_accepted = _effective(sample.accepted[sample.valid], sample.group[sample.valid])
    invalid, invalid_accepted = _effective(sample.accepted[~sample.valid], sample.group[~sample.valid])
    return CheckErrors(valid=valid, valid_accepted=valid_accepted, invalid=invalid, invalid_accepted=invalid_accepted)


def _effective(hits: Booleans, group: Integers) -> tuple[int, int]:
    """The number of independent trials, and of hits, that tell as much as these do; unchanged if groups differ."""
    n = len(hits)
    if len(np.unique(group)) == n:
        return n, int(hits.sum())
    trials = max(1, round(effective_trials(hits, group)))
    return trials, round(trials * float(hits.mean()))


def more_needed(valid: int, invalid: int) -> int:
    """How many more decided reviews give `LEAST_OF_EACH` valid and invalid edits, at the shares observed so far.

    0 if there are enough. Shares are smoothed by one image of each kind, so that they are never 0.
    """
    n = valid + invalid
    return max(math.ceil(max(0, LEAST_OF_EACH - count) * (n + 2) / (count + 1)) for count in (valid, invalid))


def half_width(valid: int, invalid: int, more: int) -> float:
    """The largest half-width (0 … 1) that the intervals of both errors can have after `more` decided reviews.

    Wilson's interval of the rarer kind at a rate of 50 %, which tells the reviewer nothing about the checks.
    """
    n = valid + invalid
    rarer = (min(valid, invalid) + 1) / (n + 2) * (n + more)
    quantile = float(norm.ppf((1 + LEVEL) / 2))
    return quantile / (2 * math.sqrt(rarer + quantile**2))


def separation(images: ScoredImages) -> dict[str, float]:
    """Check → the probability that a valid image scores above an invalid one (AUROC), of the images that it scored."""
    areas = {}
    for place, check in enumerate(images.checks):
        scores, is_scored = images.scores[:, place], ~np.isnan(images.scores[:, place])
        valid, invalid = is_scored & (images.kind == VALID), is_scored & (images.kind != VALID)
        if valid.any() and invalid.any():
            areas[check] = auroc(scores[valid], scores[invalid])
    return areas


def fit_held_out(sample: JudgedSample, images: ScoredImages, half: Booleans) -> FittedThresholds | None:
    """Thresholds fitted on the whole sample, and the errors of such thresholds on the half that did not choose them.

    `images` are the edits of `sample`, in its order, and `half` is the half that each belongs to. None if a half has
    fewer than 8 valid or invalid edits, or no check scored every edit.
    """
    counts = [
        int(((sample.valid == is_valid) & (half == half_number)).sum())
        for is_valid in (True, False)
        for half_number in (0, 1)
    ]
    if min(counts) < LEAST_IN_HALF or not images.complete:
        return None
    margins = held_out_margins(images, half)
    judged = replace(sample, accepted=margins >= 0)
    return FittedThresholds(
        thresholds=fit_by_factor(images),
        errors=error_rates(judged),
        classes=class_error_rates(judged),
        auroc=auroc(margins[sample.valid], margins[~sample.valid]),
    )


def fit_validity(sample: JudgedSample, signals: SignalSample, passable: Booleans, seed: int) -> FittedValidity | None:
    """Fit the validity model and its check on the whole sample, with the check's cross-validated errors.

    `signals`: those of the sample's edits, in its order. `passable`: edits that no other check refuses. None with fewer
    than 25 valid or 25 invalid edits, or without signals.
    """
    model = fit_model(signals, seed)
    if model is None:
        return None
    probabilities = held_out_probabilities(signals, seed)
    reached = held_out_accepted(probabilities, signals.valid & passable, signals.group, seed)
    judged = replace(sample, accepted=passable & reached)
    lowest = lowest_probability(probabilities, signals.valid & passable)
    return FittedValidity(
        model=model,
        thresholds={VALIDITY: {"default": lowest}},
        errors=error_rates(judged),
        classes=class_error_rates(judged),
    )
