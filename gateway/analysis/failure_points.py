"""Failure points: the lowest severity of each corruption that changes a model's prediction for an image.

Only images that the model gets right on the null arm (the unchanged image) count. The prediction may be right again at
a larger severity; only the first change counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from gateway.analysis.effects import Integers, Outcomes
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.results import FailurePoints

NEVER = SEVERITIES[-1] + 1


def first_change(unchanged: str, answers: Mapping[int, str]) -> int | None:
    """The lowest severity in `answers` (class by severity) whose class differs from `unchanged`, or None."""
    return min((severity for severity, answer in answers.items() if answer != unchanged), default=None)


def corruption_of(value: str) -> tuple[str, int]:
    """Name and severity of a corruption's value: "gaussian noise 3" → ("gaussian noise", 3)."""
    way, severity = value.rsplit(" ", 1)
    return way, int(severity)


def failure_points(outcomes: Outcomes) -> list[FailurePoints]:
    """The number of images that first fail at each severity, per corruption, sorted by name.

    `outcomes` are those of method `corruptions`; the values of its cells hold name and severity.
    """
    rows: dict[str, list[tuple[int, Integers]]] = defaultdict(list)
    for cell, members in outcomes.cells.items():
        way, severity = corruption_of(cell.value)
        rows[way].append((severity, members))
    return [_points(way, rows[way], outcomes) for way in sorted(rows)]


def _points(way: str, rows: list[tuple[int, Integers]], outcomes: Outcomes) -> FailurePoints:
    members = np.concatenate([rows for _, rows in rows])
    severity = np.concatenate([np.full(len(rows), severity) for severity, rows in rows])
    right = outcomes.null.correct[members]
    members, severity = members[right], severity[right]
    changed = outcomes.counterfactual.predicted[members] != outcomes.null.predicted[members]
    sources, place = np.unique(outcomes.source[members], return_inverse=True)
    first = np.full(len(sources), NEVER)
    np.minimum.at(first, place[changed], severity[changed])
    counts = np.bincount(first, minlength=NEVER + 1)
    middle = int(np.sort(first)[(len(first) - 1) // 2]) if len(first) else NEVER
    return FailurePoints(
        corruption=way,
        sources=len(sources),
        first=[int(counts[severity]) for severity in SEVERITIES],
        never=int(counts[NEVER]),
        median=None if middle == NEVER else middle,
    )
