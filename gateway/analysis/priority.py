"""The order in which source images are rendered, and the order in which failures are reviewed.

Rendering alternates between classes, so that at any time all classes have about equally many images. Most failures
repeat a few faults, so the next failure to review is the one with the most evidence that earlier ones do not show.
`benchmarks/priority.py` compares both orders with others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.effects import Cell, CellEffect

REPETITION_FACTOR = 0.5  # weight of a fault relative to its previous occurrence in the list


class Fault(NamedTuple):
    """A weakness that a failure shows: a model under test, a method and a cell."""

    model: str
    method: str
    cell: Cell


class Failure(NamedTuple):
    """A counterfactual with a wrong prediction and a right one on its null arm. `loss`: drop of p(truth), 0 … 1."""

    id: str
    loss: float
    faults: tuple[Fault, ...]


def turns(labels: Sequence[Hashable]) -> list[int]:
    """The rendering position of each image, from 0. Classes alternate; images of a class keep their order."""
    counts: Counter[Hashable] = Counter()
    first = {label: index for index, label in reversed(list(enumerate(labels)))}
    keys = []
    for label in labels:
        keys.append((counts[label], first[label]))
        counts[label] += 1
    order = sorted(range(len(labels)), key=keys.__getitem__)
    positions = [0] * len(labels)
    for position, image in enumerate(order):
        positions[image] = position
    return positions


def evidence(effect: CellEffect) -> float:
    """The evidence of a cell for a fault, 0 … 1: its drop in accuracy, shrunk towards 0 for few images."""
    return max(0.0, -effect.delta_accuracy) * effect.sources / (effect.sources + LEAST_SOURCES)


def review_order(failures: Iterable[Failure], evidence: Mapping[Fault, float], limit: int) -> list[str]:
    """The ids of the first `limit` failures to review.

    The next failure has the largest sum of its faults' evidence, halved for each earlier failure with the same fault.
    The sum only falls as failures are selected, so lazy greedy selection is exact (Minoux 1978). Ties are broken by the
    larger loss, then by id.
    """
    counts: Counter[Fault] = Counter()

    def weight(failure: Failure) -> float:
        return sum(evidence.get(fault, 0.0) * REPETITION_FACTOR ** counts[fault] for fault in failure.faults)

    heap = [(-weight(failure), -failure.loss, failure.id, failure.faults) for failure in failures]
    heapify(heap)
    selected: list[str] = []
    while heap and len(selected) < limit:
        old_key, loss, name, faults = heap[0]
        key = -weight(Failure(name, -loss, faults))
        if key > old_key:
            heapreplace(heap, (key, loss, name, faults))
        else:
            heappop(heap)
            selected.append(name)
            counts.update(faults)
    return selected
