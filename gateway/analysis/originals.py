"""Whether a classifier is right on the originals. If it is not, no cell can show what an edit costs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest

from gateway.analysis.certainty import clustered_rate, effective_trials
from gateway.analysis.effects import Floats, Integers, Originals
from shared.schemas.effects import Rate
from shared.schemas.metrics import OriginalsStanding

QUANTILE = 1.96  # of the normal distribution, one-sided 2.5 %
SOUND = 0.1  # of the way from chance to always right: a model that is surely below it is not testable
EXCHANGED = 0.8  # accuracy with classes exchanged from which the exchange explains what is wrong
LEAST_OTHERS = 6  # images of other classes from which a single predicted class is no chance
LEAST_INNER = 0.5  # mean confidence before a second softmax from which one is told apart from flat logits
LEAST_INNER_OF_FEW = 0.9  # of the accuracy: with few classes flat logits are easily like softmax of probabilities
FEW_CLASSES = 5
LEAST_GAIN = 0.05  # of the mean score with exchanged channels, from which the exchange is said
GAIN_LEVEL = 0.005  # of the sign test of that gain, one-sided
ROUNDING = 0.05  # of logarithms, since servers round their probabilities


class LargestClass(NamedTuple):
    """The class that most originals have, and the share of these."""

    number: int
    share: float


@dataclass(frozen=True, slots=True)
class JudgedOriginals:
    """A model on the originals; classes are numbers of `Originals`.

    `chance`: the share that would be right if predictions had nothing to do with labels; `largest`: if they all named
    the largest class. `only`: the class that it predicts for everything; None if there are several. `order`: predicted
    class → the class meant, where exchanging them makes the model right; empty without such an exchange. `in_order`:
    how often it is right then, on the half of the images that did not choose the exchange.
    """

    right: Rate
    chance: float
    largest: LargestClass
    standing: OriginalsStanding
    only: int | None
    order: dict[int, int]
    in_order: Rate | None


def judge_originals(originals: Originals, known: int, seed: int) -> JudgedOriginals | None:
    """How a model that knows `known` classes stands on its originals; None without labels.

    A model agrees if it is right more often than by chance, and agrees with its labels more often than with shuffled
    ones (one-sided, 2.5 %). `sound`: it agrees, and the lower limit of its accuracy is above the share of the
    largest class, which no model reaches where there is one class. `unsound`: it does not agree, and an exchange of
    classes makes it right; it predicts one class for everything; or the upper limit of its accuracy is below chance
    plus a tenth of the way to 1. `open`: neither is shown. Chance is the agreement of unrelated labels and
    predictions with these frequencies (Cohen's), at least one in as many as there are classes.
    """
    truth, predicted = originals.truth, originals.predicted
    if not len(truth):
        return None
    right = clustered_rate(truth == predicted, originals.group)
    chance = _chance(truth, predicted, known)
    order, in_order = _exchange(originals, seed)
    only = _only_class(truth, predicted)
    classes, counts = np.unique(truth, return_counts=True)
    most = int(counts.argmax())
    largest = LargestClass(int(classes[most]), float(counts[most] / len(truth)))
    standing: OriginalsStanding = "open"
    above = right.low > chance if largest.share == 1 else _agrees(originals) and right.count > chance * right.n
    if above and right.low > largest.share:
        standing = "sound"
    elif not above and (order or only is not None or right.high < chance + SOUND * (1 - chance)):
        standing = "unsound"
    return JudgedOriginals(right, chance, largest, standing, only, order, in_order)


def _chance(truth: Integers, predicted: Integers, known: int) -> float:
    size = int(max(truth.max(), predicted.max())) + 1
    classes = np.bincount(truth, minlength=size) / len(truth)
    present = int(np.count_nonzero(classes))
    if present == 1:  # then a model that is always right agrees by chance, too
        return 1 / max(2, known)
    return max(float(classes @ np.bincount(predicted, minlength=size)) / len(truth), 1 / present)


def _agrees(originals: Originals) -> bool:
    """Whether predictions agree with the labels more often than with labels shuffled among the images.

    Normal approximation with the exact mean and variance of a permutation (Hoeffding 1951); images of one group count
    as their effective number. False if all labels are equal.
    """
    truth, predicted = originals.truth, originals.predicted
    n, size = len(truth), int(max(truth.max(), predicted.max())) + 1
    labels, said = np.bincount(truth, minlength=size), np.bincount(predicted, minlength=size)
    expected = float(labels @ said) / n
    centred = np.eye(size) - said[:, None] / n - labels[None, :] / n + expected / n
    variance = float((np.outer(labels, said) * centred**2).sum()) / max(1, n - 1)
    hits = truth == predicted
    design = effective_trials(hits, originals.group) / n
    return variance > 1e-9 and (hits.sum() - expected) * math.sqrt(design) > QUANTILE * math.sqrt(variance)


def _only_class(truth: Integers, predicted: Integers) -> int | None:
    """The class predicted for everything, if enough images have another label."""
    said = int(predicted[0])
    return said if (predicted == said).all() and np.count_nonzero(truth != said) >= LEAST_OTHERS else None


def _exchange(originals: Originals, seed: int) -> tuple[dict[int, int], Rate | None]:
    """The exchange of predicted classes that makes the model right most often on one half of the groups.

    It counts only if the other half confirms it: with it the model is right on four fifths of these images, surely
    on more than half, and more often than without, beyond the limits of both rates.
    """
    truth, predicted, group = originals.truth, originals.predicted, originals.group
    groups = np.unique(group)
    chosen = np.random.default_rng(seed).permutation(groups)[: len(groups) // 2]
    first = np.isin(group, chosen)
    if not first.any() or first.all():
        return {}, None
    size = int(max(truth.max(), predicted.max())) + 1
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (predicted[first], truth[first]), 1)
    meant = linear_sum_assignment(counts, maximize=True)[1]
    said = np.flatnonzero(counts[np.arange(size), meant])
    order = {int(name): int(meant[name]) for name in said if meant[name] != name}
    if not order:
        return {}, None
    exchanged = _apply(predicted, order)
    before, after = (
        clustered_rate(classes[~first] == truth[~first], group[~first]) for classes in (predicted, exchanged)
    )
    confirmed = (after.value or 0) >= EXCHANGED and after.low > max(before.high, 0.5)
    return (order, after) if confirmed else ({}, None)


def before_second_softmax(top: Sequence[float], classes: int) -> float | None:
    """The largest of the probabilities q, where p = softmax(q); None if p is no softmax of probabilities.

    Then log p plus a constant is q: 0 or more, and 1 in total. `top`: the largest of p in descending order, of
    `classes` in all. The others count as equal, which makes q too small at most.
    """
    if not top or min(top) <= 0 or (rest := 1 - sum(top)) <= 0 < classes - len(top):
        return None
    logs, others = np.log(top), classes - len(top)
    inner = logs - math.log(rest / others) if others else logs - logs.mean() + 1 / len(top)
    return float(inner[0]) if inner.min() >= -ROUNDING and inner.sum() <= 1 + ROUNDING else None


def is_softmax_twice(inner: Floats, right: Rate, classes: int) -> bool:
    """Whether a model is surely right more often than the largest value of two softmax functions in a row.

    `inner`: `before_second_softmax` of each original, NaN for None. Their mean must be that of a model that knows
    something, since logits of a high temperature look alike.
    """
    least = LEAST_INNER_OF_FEW * right.low if classes <= FEW_CLASSES else LEAST_INNER
    return bool(right.low > largest_of_two(classes) and inner.mean() >= least)


def largest_of_two(classes: int) -> float:
    """The largest probability after softmax of softmax: one class has 1 before, the others 0."""
    return math.e / (math.e + classes - 1)


def is_better(scores: Floats, exchanged: Floats) -> bool:
    """Whether a model is better on images with red and blue exchanged: by 5 points, and on more images than worse."""
    better, worse = int((exchanged > scores).sum()), int((exchanged < scores).sum())
    if better <= worse or (exchanged - scores).mean() < LEAST_GAIN:
        return False
    return bool(binomtest(better, better + worse, alternative="greater").pvalue < GAIN_LEVEL)


def _apply(predicted: Integers, order: dict[int, int]) -> NDArray[np.int64]:
    exchanged = predicted.astype(np.int64)
    for said, meant in order.items():
        exchanged[predicted == said] = meant
    return exchanged
