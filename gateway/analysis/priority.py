"""What comes first: which source images are worked on, and which failures a person looks at. And how good an order is.

Before anything is rendered images are taken class by class in turn: whenever one looks, every class has been tried
about equally often. Afterwards the failures are known, and most of them show the same few faults again: so the next to
look at is the one that shows most that was not shown yet. `benchmarks/priority.py` holds both against other orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

import numpy as np

from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.results import Cell, CellEffect

AGAIN = 0.5  # what showing a fault once more is worth of what it was worth before


class Fault(NamedTuple):
    """What a failure shows: a model under test that breaks in a cell of a method."""

    model: str
    method: str
    cell: Cell


class Failure(NamedTuple):
    """A counterfactual that some model gets wrong and its null arm right; `loss` of the truth's probability, 0 to 1."""

    id: str
    loss: float
    faults: tuple[Fault, ...]


def turns(labels: Sequence[Hashable]) -> list[int]:
    """When each image comes, from 0: the classes in turn, as they first occur; within a class in the order given."""
    counts: Counter[Hashable] = Counter()
    first = {label: place for place, label in reversed(list(enumerate(labels)))}
    keys = []
    for label in labels:
        keys.append((counts[label], first[label]))
        counts[label] += 1
    order = sorted(range(len(labels)), key=keys.__getitem__)
    turn = [0] * len(labels)
    for place, image in enumerate(order):
        turn[image] = place
    return turn


def evidence(effect: CellEffect) -> float:
    """How strongly a cell speaks for a fault, 0 to 1: its drop in accuracy, drawn to 0 where there are few images."""
    return max(0.0, -effect.delta_accuracy) * effect.sources / (effect.sources + LEAST_SOURCES)


def review_order(failures: Iterable[Failure], evidence: Mapping[Fault, float], most: int) -> list[str]:
    """The ids of the first `most` failures to look at.

    Next is always the failure that shows most: the sum of its faults' evidence, halved for each time that a fault was
    shown before. Worth only falls as others are shown, so the greedy choice needs no second look at those behind
    (Minoux 1978). Equal worth: the greater loss, then the id.
    """
    shown: Counter[Fault] = Counter()

    def worth(failure: Failure) -> float:
        return sum(evidence.get(fault, 0.0) * AGAIN ** shown[fault] for fault in failure.faults)

    line = [(-worth(failure), -failure.loss, failure.id, failure.faults) for failure in failures]
    heapify(line)
    chosen: list[str] = []
    while line and len(chosen) < most:
        was, loss, name, faults = line[0]
        now = -worth(Failure(name, -loss, faults))
        if now > was:
            heapreplace(line, (now, loss, name, faults))
        else:
            heappop(line)
            chosen.append(name)
            shown.update(faults)
    return chosen


def apfd(found_by: Sequence[int], costs: Sequence[float]) -> float:
    """How early an order finds the faults: the mean share of the cost that is left when one is found, 0 to 1.

    `found_by`: for each fault the place, from 0, of the first test that shows it; `costs`: of each test, in the order.
    With equal costs it is the average percentage of faults detected, 1 − Σ TF / (n m) + 1 / (2 n) (Rothermel et al.
    2001), otherwise its form with costs (Elbaum et al. 2001). Raises ValueError without faults or costs.
    """
    if not len(found_by) or not len(costs):
        raise ValueError("an order is measured on at least one fault that it finds")
    spent = np.cumsum(costs)
    places = np.asarray(found_by)
    return float(np.mean(1 - (spent[places] - np.asarray(costs)[places] / 2) / spent[-1]))
