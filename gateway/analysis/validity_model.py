"""Combine the scores of images into a probability of being valid: a logistic regression on judged images.

Scores are standardised, and their weights shrunk by a ridge penalty, so that correlated scores share a weight. The
edit's factor, value and class have weights of their own, since a generator fails at some edits far more often than at
others; they are shrunk to the common intercept the more, the fewer images have them.
The model is judged by cross-validation: all images of a group of source images belong to one of five folds, and each
fold is predicted by a model of the other four. Intervals of the AUROC resample groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from gateway.analysis.effects import Floats, Integers
from gateway.analysis.thresholds import REFUSED, Booleans, auroc
from shared.schemas.effects import Estimate
from shared.schemas.validity import EditKind, SignalWeight, ValidityModel

FOLDS = 5
RIDGE = 10.0  # penalty on the squared weights of standardised scores
RIDGE_OF_KINDS = 0.3  # penalty on those of factors, values and classes
LEAST_TO_FIT = 25  # valid images, and as many invalid ones
RESAMPLES = 1_000
_DIGITS = 5  # of what a profile stores


@dataclass(frozen=True, slots=True)
class SignalSample:
    """n judged images with their s signals.

    `signals`: n × s (`shared.schemas.validity.signal_value` of each score), NaN where a score is missing. `edits`: the
    factors, values and class of each. `group`: images of one group are not independent.
    """

    names: tuple[str, ...]
    signals: Floats
    edits: Sequence[EditKind]
    valid: Booleans
    group: Integers

    def subset(self, chosen: Booleans) -> SignalSample:
        """The images of a mask of length n."""
        edits = [edit for edit, is_chosen in zip(self.edits, chosen, strict=True) if is_chosen]
        return SignalSample(self.names, self.signals[chosen], edits, self.valid[chosen], self.group[chosen])

    def without(self, left_out: Sequence[str]) -> SignalSample:
        """The same images without some signals."""
        places = [place for place, name in enumerate(self.names) if name not in left_out]
        names = tuple(self.names[place] for place in places)
        return SignalSample(names, self.signals[:, places], self.edits, self.valid, self.group)

    def of_factors(self) -> SignalSample:
        """The same images without their values and classes."""
        edits = [EditKind(edit.factors) for edit in self.edits]
        return SignalSample(self.names, self.signals, edits, self.valid, self.group)

    @property
    def sufficient(self) -> bool:
        """Whether there are enough valid and invalid images, of enough groups, to fit a model and to judge it."""
        valid = int(self.valid.sum())
        groups = min(len(np.unique(self.group[self.valid == kind])) for kind in (True, False))
        return min(valid, len(self.valid) - valid) >= LEAST_TO_FIT and groups >= FOLDS


@dataclass(frozen=True, slots=True)
class _Fit:
    """A fitted regression. Factors, values and classes are columns after the signals, in shares of an edit's."""

    names: tuple[str, ...]
    kinds: EditKind  # all that the sample has
    mean: Floats
    scale: Floats
    weights: Floats  # intercept first

    def probabilities(self, sample: SignalSample) -> Floats:
        columns = _columns(sample, self.mean, self.scale, self.kinds)
        return np.asarray(expit(columns @ self.weights[1:] + self.weights[0]))


def fit_model(sample: SignalSample, seed: int) -> ValidityModel | None:
    """The model fitted on a whole sample, with its cross-validated AUROC; None if the sample is too small.

    Signals without two different values are left out.
    """
    if not sample.sufficient:
        return None
    fitted = _fit(sample)
    weights = {
        name: SignalWeight(
            mean=round(float(mean), _DIGITS), scale=float(f"{scale:.{_DIGITS}g}"), weight=round(float(weight), _DIGITS)
        )
        for name, mean, scale, weight in zip(fitted.names, fitted.mean, fitted.scale, fitted.weights[1:], strict=False)
        if scale > 0
    }
    if not weights:
        return None
    of_kinds = iter(fitted.weights[1 + len(fitted.names) :].round(_DIGITS).tolist())
    factors, values, classes = ({name: next(of_kinds) for name in names} for names in fitted.kinds)

    def area(images: SignalSample) -> Estimate:
        return auroc_interval(held_out_probabilities(images, seed), sample.valid, sample.group, seed)

    return ValidityModel(
        intercept=round(float(fitted.weights[0]), _DIGITS),
        signals=weights,
        factors=factors,
        values=values,
        classes=classes,
        images=len(sample.valid),
        valid=int(sample.valid.sum()),
        auroc=area(sample),
        auroc_of_scores=area(sample.of_factors()),
    )


def held_out_probabilities(sample: SignalSample, seed: int) -> Floats:
    """P(valid) of each image, 0 to 1, by the model of the other folds."""
    fold = folds(sample.group, seed)
    probabilities = np.full(len(sample.valid), float(sample.valid.mean()))
    for number in range(FOLDS):
        test = fold == number
        if test.any() and len(np.unique(sample.valid[~test])) == 2:
            probabilities[test] = _fit(sample.subset(~test)).probabilities(sample.subset(test))
    return probabilities


def held_out_accepted(probabilities: Floats, valid: Booleans, group: Integers, seed: int) -> Booleans:
    """Which images a threshold accepts that was chosen on the other folds."""
    fold = folds(group, seed)
    accepted = np.zeros(len(valid), np.bool_)
    for number in range(FOLDS):
        test = fold == number
        accepted[test] = probabilities[test] >= lowest_probability(probabilities[~test], valid[~test])
    return accepted


def lowest_probability(probabilities: Floats, valid: Booleans) -> float:
    """The threshold that refuses at most 13 % (`REFUSED`) of the valid images; 0 without valid images."""
    if not valid.any():
        return 0.0
    return float(np.floor(1e4 * np.quantile(probabilities[valid], REFUSED, method="lower")) / 1e4)


def folds(group: Integers, seed: int) -> Integers:
    """The fold (0 … 4) of each image; the images of a group are in one fold."""
    _, index = np.unique(group, return_inverse=True)
    order = np.random.default_rng(seed).permutation(int(index.max()) + 1)
    return np.asarray(order[index] % FOLDS)


def auroc_interval(scores: Floats, valid: Booleans, group: Integers, seed: int) -> Estimate:
    """The AUROC of a score with a 95 % percentile interval from 1,000 resamples of groups.

    Raises ValueError without images of both kinds.
    """
    if valid.all() or not valid.any():
        raise ValueError("an AUROC needs valid and invalid images; judge more")
    _, index = np.unique(group, return_inverse=True)
    groups = int(index.max()) + 1
    draws = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), RESAMPLES)
    times = draws[:, index].astype(np.float64)  # how often each resample has each image
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    of_valid, of_invalid = (
        np.add.reduceat((times * kind)[:, order], starts, axis=1) for kind in (valid, ~valid)
    )  # resamples × distinct scores
    below = np.cumsum(of_invalid, axis=1) - of_invalid / 2
    pairs = of_valid.sum(axis=1) * of_invalid.sum(axis=1)
    areas = (of_valid * below).sum(axis=1)[pairs > 0] / pairs[pairs > 0]
    low, high = np.quantile(areas, [0.025, 0.975])
    value = auroc(scores[valid], scores[~valid])
    return Estimate(value=round(value, 4), low=round(float(low), 4), high=round(float(high), 4))


def _fit(sample: SignalSample) -> _Fit:
    present = ~np.isnan(sample.signals)
    counts = np.maximum(present.sum(axis=0), 1)
    filled = np.where(present, sample.signals, 0.0)
    mean = filled.sum(axis=0) / counts
    scale = np.sqrt((np.where(present, sample.signals - mean, 0.0) ** 2).sum(axis=0) / counts)
    scale = np.where(scale > 1e-9, scale, 0.0)
    kinds = EditKind(*(tuple(sorted({name for names in column for name in names})) for column in _kinds(sample)))
    columns = _columns(sample, mean, scale, kinds)
    penalty = np.full(columns.shape[1], RIDGE_OF_KINDS)
    penalty[: len(sample.names)] = RIDGE
    target = sample.valid.astype(np.float64)

    def loss(weights: Floats) -> tuple[float, Floats]:
        logits = columns @ weights[1:] + weights[0]
        value = np.logaddexp(0.0, logits).sum() - logits @ target + (penalty * weights[1:]) @ weights[1:] / 2
        slope = expit(logits) - target
        return float(value), np.concatenate([[slope.sum()], columns.T @ slope + penalty * weights[1:]])

    start = np.zeros(columns.shape[1] + 1)
    weights = np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-8}).x)
    return _Fit(sample.names, kinds, mean, scale, weights)


def _kinds(sample: SignalSample) -> list[list[tuple[str, ...]]]:
    """The factors of all images, their values, and their classes."""
    return [[edit[place] for edit in sample.edits] for place in range(len(EditKind._fields))]


def _columns(sample: SignalSample, mean: Floats, scale: Floats, kinds: EditKind) -> Floats:
    """Standardised signals, 0 where missing, and the share of each edit's factors, values and classes that each is."""
    usable = ~np.isnan(sample.signals) & (scale > 0)
    standard = np.where(usable, (sample.signals - mean) / np.where(scale > 0, scale, 1.0), 0.0)
    shares = [
        [
            [names_of_edit.count(name) / len(names_of_edit) if names_of_edit else 0.0 for names_of_edit in column]
            for name in names
        ]
        for names, column in zip(kinds, _kinds(sample), strict=True)
    ]
    columns = [np.array(share, np.float64).reshape(-1, len(sample.valid)).T for share in shares]
    return np.concatenate([standard, *columns], axis=1)
