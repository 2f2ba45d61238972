"""Thresholds of image checks from images of known validity, and verdicts on images that did not choose them.

The thresholds of all checks are set together, per factor: among the sets that refuse at most `REFUSED` of the valid
images, the one that accepts the fewest invalid ones (all kinds weigh equally).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.effects import Floats, Integers

REFUSED = 0.13  # share of valid images that all checks together may refuse; below 15 % as a margin for other images
ENOUGH = 15  # the least valid images of a factor with separate thresholds
VALID = 0  # the kind of valid images
_SHARES = (0.0, 0.01, 0.02, 0.04, 0.06, 0.09, 0.13)  # shares of valid images that one check may refuse
_DIGITS = 4  # of thresholds by factor
Booleans = NDArray[np.bool_]
FactorThresholds = Mapping[str, Mapping[str, float]]  # check -> factor, or `default` for other factors -> lowest score


@dataclass(frozen=True, slots=True)
class ScoredImages:
    """n images with their scores by c checks and their validity.

    `scores`: n × c, NaN where a check did not score an image. `kind`: 0 for valid images, and a number from 1 for each
    kind of invalid ones. `passable`: False for an image that is refused at any threshold. `factors`: the factors that
    the edit of each image changes.
    """

    checks: tuple[str, ...]
    scores: Floats
    kind: Integers
    passable: Booleans
    factors: Sequence[tuple[str, ...]]

    def subset(self, chosen: Booleans) -> ScoredImages:
        """The images of a mask of length n."""
        factors = list(compress(self.factors, chosen))
        return ScoredImages(self.checks, self.scores[chosen], self.kind[chosen], self.passable[chosen], factors)

    @property
    def complete(self) -> tuple[int, ...]:
        """The places of the checks that scored every passable image."""
        return tuple(np.flatnonzero(~np.isnan(self.scores[self.passable]).any(axis=0)).tolist())


def changes_factor(factors: Sequence[tuple[str, ...]], name: str) -> Booleans:
    """Which of n edits change a factor; `factors`: those that each of them changes."""
    return np.array([name in factors_of_edit for factors_of_edit in factors], np.bool_)


def fit_by_factor(images: ScoredImages) -> dict[str, dict[str, float]]:
    """Check → factor → lowest score; `default` is set on all images, for factors with few valid ones.

    Raises ValueError without valid images.
    """
    names = sorted({factor for factors in images.factors for factor in factors})
    groups = {"default": images, **{name: images.subset(changes_factor(images.factors, name)) for name in names}}
    fitted = {
        name: fit(group)
        for name, group in groups.items()
        if name == "default" or int((group.kind == VALID).sum()) >= ENOUGH
    }
    return {
        check: {factor: round(lowest[check], _DIGITS) for factor, lowest in fitted.items()}
        for check in fitted["default"]
    }


def fit(images: ScoredImages) -> dict[str, float]:
    """Check → lowest score: the set that accepts the fewest invalid images and refuses at most `REFUSED` of valid ones.

    Checks that did not score every passable image are left out. Ties go to the lower thresholds. Raises ValueError
    without valid images.
    """
    valid = images.kind == VALID
    if not valid.any():
        raise ValueError("there are no valid counterfactuals to fix thresholds on; take more images")
    places = images.complete
    candidates = [_candidates(images.scores[valid, place]) for place in places]
    lowest, passed = np.zeros((1, 0)), images.passable[None]
    for place, column in zip(places, candidates, strict=True):  # every set of thresholds so far, in lexical order
        passes = images.scores[None, :, place] >= np.array(column)[:, None]
        lowest = np.concatenate([np.repeat(lowest, len(column), 0), np.tile(column, len(lowest))[:, None]], axis=1)
        passed = (passed[:, None] & passes[None]).reshape(-1, len(images.kind))
        # An image that is refused at any threshold does not count against a set of thresholds.
        refused = (images.passable & valid & ~passed).sum(axis=1)
        allowed = refused <= REFUSED * valid.sum()
        lowest, passed = lowest[allowed], passed[allowed]
    kinds = np.unique(images.kind[~valid])
    rates = [passed[:, images.kind == kind].mean(axis=1) for kind in kinds] or [np.zeros(len(passed))]
    best = int(np.argmin(np.mean(rates, axis=0).round(9)))
    return dict(zip([images.checks[place] for place in places], lowest[best].tolist(), strict=True))


def _candidates(valid: Floats) -> list[float]:
    """Candidate thresholds, just below the quantiles of the valid scores."""
    finite = valid[~np.isnan(valid)]
    shares = _SHARES if len(finite) else ()
    return sorted({float(np.quantile(finite, share, method="lower")) - 1e-4 for share in shares} or {0.0})


def margins(images: ScoredImages, thresholds: FactorThresholds, scale: Mapping[str, float]) -> Floats:
    """Least distance of each image's scores above its thresholds, in units of `scale`; it is accepted from 0 on.

    The strictest threshold of the factors of its edit counts. A score that is missing refuses nothing.
    """
    least = np.full(len(images.kind), np.inf)
    for place, check in enumerate(images.checks):
        if check in thresholds:
            by_factor = thresholds[check]
            lowest = [
                max(by_factor.get(name, by_factor["default"]) for name in names or ("default",))
                for names in images.factors
            ]
            least = np.fmin(least, (images.scores[:, place] - np.array(lowest)) / scale[check])
    return np.where(images.passable, least, np.minimum(least, 0.0) - 1.0)


def held_out_margins(images: ScoredImages, half: Booleans) -> Floats:
    """`margins` of each image under the thresholds fitted on the other half, two-fold.

    `half`: the half that each image belongs to; images that are not independent belong to the same half. Raises
    ValueError if a half has no valid images.
    """
    least = np.zeros(len(images.kind))
    for fold in (half, ~half):
        training = images.subset(~fold)
        thresholds = fit_by_factor(training)
        valid = training.scores[training.kind == VALID]
        scale = {check: float(np.nanstd(valid[:, training.checks.index(check)])) or 1.0 for check in thresholds}
        least[fold] = margins(images.subset(fold), thresholds, scale)
    return least


def auroc(valid: Sequence[float] | Floats, invalid: Sequence[float] | Floats) -> float:
    """The probability that a valid image scores above an invalid one; ties count half. NaN without images of a kind."""
    if not len(valid) or not len(invalid):
        return float("nan")
    difference = np.asarray(valid)[:, None] - np.asarray(invalid)[None]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())
