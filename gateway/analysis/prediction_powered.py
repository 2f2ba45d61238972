"""The valid share from a judge's verdicts on all images and a few reviews: prediction-powered inference.

A judge (a model) gives every image a score, people review a random sample of n, and N images have no review:

    θ = λ · mean of the N scores + mean over the n reviewed of (valid − λ · score)

The second term corrects the judge's bias, so θ is unbiased for any judge and any fixed λ (Angelopoulos, Bates,
Fannjiang, Jordan, Zrnic: arXiv 2301.09633). λ is the one with the least variance, estimated from the sample (PPI++:
Angelopoulos, Duchi, Zrnic: arXiv 2311.01453, section 6), so a useless judge leaves the estimate of the reviews alone.

Of the authors' package `ppi-python`, the estimate is the same. Its interval assumes independent images and a large
sample, so it does not know the images of one source, and is too narrow for few reviews and shares near 0 or 1
(docs/decisions/results.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import t

from gateway.analysis.certainty import LEVEL, score_interval
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.thresholds import Booleans
from shared.schemas.effects import Estimate

LEAST_REVIEWED = 20  # images, of as many source images


class PoweredShare(NamedTuple):
    """P(valid), 0 to 1, and the number of independent reviews that would say it as exactly."""

    value: float
    trials: float


def prediction_powered_share(
    valid: Booleans, scores: Floats, group: Integers, other_scores: Floats, other_group: Integers
) -> Estimate | None:
    """P(valid) with a 95 % interval: Wilson's, with the number of trials that has the estimate's variance.

    The quantile is Student's with the number of reviewed groups. None where `powered_share` is.
    """
    share = powered_share(valid, scores, group, other_scores, other_group)
    if share is None:
        return None
    low, high = score_interval(*share, float(t.ppf((1 + LEVEL) / 2, len(np.unique(group)) - 1)))
    return Estimate(value=share.value, low=min(low, share.value), high=max(high, share.value))


def powered_share(
    valid: Booleans, scores: Floats, group: Integers, other_scores: Floats, other_group: Integers
) -> PoweredShare | None:
    """P(valid) of all images, with its trials.

    `valid` and `scores`: verdicts of people and scores of the judge (0 to 1) on the n reviewed images; `other_scores`
    are those on the N others. Images of one `group` are not independent: variances are between groups. Two
    pseudo-groups, one valid and one invalid image, keep the variance defined where nearly all verdicts agree. None with
    fewer than 20 reviewed groups, or without other images.
    """
    if len(np.unique(group)) < LEAST_REVIEWED or not len(other_scores):
        return None
    truth = valid.astype(np.float64)
    weight = _weight(truth, scores, len(truth) / len(other_scores))
    corrections = truth - weight * scores
    value = weight * float(other_scores.mean()) + float(corrections.mean())
    variance = _variance(corrections, group, weight * other_scores, other_group, weight * float(scores.mean()))
    smoothed = (len(truth) * min(max(value, 0.0), 1.0) + 1) / (len(truth) + 2)
    trials = min(smoothed * (1 - smoothed) / variance, float(len(truth) + len(other_scores)))
    return PoweredShare(min(max(value, 0.0), 1.0), trials)


def _weight(truth: Floats, scores: Floats, ratio: float) -> float:
    """λ, 0 to 1; `ratio` is n / N."""
    variance = float(scores.var())
    if variance == 0.0:
        return 0.0
    covariance = float(((truth - truth.mean()) * (scores - scores.mean())).mean())
    return min(max(covariance / ((1 + ratio) * variance), 0.0), 1.0)


def _variance(corrections: Floats, group: Integers, unreviewed: Floats, other_group: Integers, judged: float) -> float:
    """The variance of the sum of two means whose values are independent between groups only (linearised).

    The groups may have images in both. The pseudo-groups' corrections are 0 and 1 less `judged`, the mean of λ · score.
    """
    _, index = np.unique(np.concatenate([group, other_group]), return_inverse=True)
    groups = int(index.max()) + 1
    pseudo = np.array([0.0, 1.0]) - judged
    centre = float(np.concatenate([corrections, pseudo]).mean())
    n = len(corrections) + len(pseudo)
    deviations = np.concatenate([(corrections - centre) / n, (unreviewed - unreviewed.mean()) / len(unreviewed)])
    sums = np.concatenate([np.bincount(index, deviations, groups), (pseudo - centre) / n])
    return float(sums @ sums) * len(np.unique(group)) / (len(np.unique(group)) - 1)
