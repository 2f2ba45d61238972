"""Orders: in which order source images are rendered, and failures reviewed; and a measure of such orders.

Images are rendered class by class in turn, so that at any time all classes are tried about equally often. Among the
failures most repeat the same few faults, so the next one to review is the one with the most evidence not shown before.
`benchmarks/priority.py` compares both with other orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.results import Cell, CellEffect

AGAIN = 0.5  # factor on the worth of a fault each time that it is shown again


class Fault(NamedTuple):
    """A weakness that a failure shows: a model under test, a method and a cell."""

    model: str
    method: str
    cell: Cell


class Failure(NamedTuple):
    """A counterfactual that a model gets wrong and its null arm right; `loss` of the truth's probability, 0 … 1."""

    id: str
    loss: float
    faults: tuple[Fault, ...]


def turns(labels: Sequence[Hashable]) -> list[int]:
    """The turn of each image, from 0: classes alternate by first occurrence; images of a class keep their order."""
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
    """The evidence of a cell for a fault, 0 … 1: its drop in accuracy, shrunk to 0 if there are few images."""
    return max(0.0, -effect.delta_accuracy) * effect.sources / (effect.sources + LEAST_SOURCES)


def review_order(failures: Iterable[Failure], evidence: Mapping[Fault, float], most: int) -> list[str]:
    """The ids of the first `most` failures to review.

    The next failure has the largest sum of its faults' evidence, halved for each time that a fault was shown before.
    The sum only falls as failures are shown, so lazy greedy selection is exact (Minoux 1978). Ties: the greater loss,
    then the id.
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
