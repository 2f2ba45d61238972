"""Two samples of a job's own images: those that show a value of a factor, and those that do not.

A scorer chooses them, and people may mark what they see in them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from gateway.analysis.certainty import LEVEL
from gateway.analysis.effects import Floats
from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.effects import ChosenBy, Interval, Rate

LEAST_MARKED = LEAST_SOURCES  # decided images of the scorer's choice from which unmarked ones do not count
TO_MARK = 48  # images of the scorer's choice
NEARLY = 8  # images that the scorer did not choose
Booleans = NDArray[np.bool_]


class Marks(NamedTuple):
    """People's marks of each image: it shows the value, it does not, or no majority. Unmarked: none of these."""

    confirmed: Booleans
    refused: Booleans
    undecided: Booleans


class OwnSamples(NamedTuple):
    """The images that show the value, and those that do not. An image may be in neither."""

    showing: Booleans
    rest: Booleans
    chosen_by: ChosenBy


def own_samples(chosen: Booleans, marks: Marks) -> OwnSamples:
    """The two samples, from what the scorer chose and how people marked it.

    A mark overrules the scorer, and an undecided image is in neither sample. With `LEAST_MARKED` decided images of the
    scorer's choice (or when all of it is marked), its unmarked images are in neither sample: then every image that
    shows the value was confirmed by eye. The scorer's word stands for the unmarked images that it did not choose.
    """
    marked = marks.confirmed | marks.refused | marks.undecided
    if not marked.any():
        return OwnSamples(chosen, ~chosen, "scorer")
    decided = chosen & (marks.confirmed | marks.refused)
    unmarked = chosen & ~marked
    by_eye = int(decided.sum()) >= LEAST_MARKED or not unmarked.any()
    showing = marks.confirmed if by_eye else marks.confirmed | unmarked
    return OwnSamples(showing, marks.refused | (~chosen & ~marked), "eye" if by_eye else "scorer and eye")


def images_to_mark(digests: list[str], chosen: Booleans, probability: Floats) -> list[str]:
    """Digests of the images that people should mark, each once, sorted, which is a random order.

    The first `TO_MARK` of the scorer's choice in this order, which are a random sample of it, and the `NEARLY` most
    probable others: some of them may show the value, too.
    """
    sample = sorted({digest for digest, choice in zip(digests, chosen, strict=True) if choice})[:TO_MARK]
    others = [digests[index] for index in np.argsort(-probability, kind="stable") if not chosen[index]]
    nearly = [digest for digest in dict.fromkeys(others) if digest not in sample][:NEARLY]
    return sorted({*sample, *nearly})


def value_probabilities(images: Floats, values: Floats, scale: float) -> Floats:
    """Zero-shot probabilities, images × values, of images × width and values × width of unit vectors.

    `scale` multiplies cosines before the softmax (arXiv 2103.00020, section 3.1).
    """
    return np.asarray(softmax(scale * (images @ values.T), axis=1))


def difference_interval(first: Rate, second: Rate) -> Interval | None:
    """The 95 % interval of the difference of two independent rates, first minus second; None if either has n = 0.

    Newcombe's hybrid of the intervals of the rates (1998, method 10). If groups have images in both samples, which
    makes the rates alike, it is wider than it needs to be.
    """
    if first.value is None or second.value is None:
        return None
    difference = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    low, high = max(-1.0, difference - below), min(1.0, difference + above)
    return Interval(low=low, high=high, level=LEVEL, kind="newcombe")
