"""Failure points: the lowest severity of each corruption that changes a model's prediction for an image.

Only images whose null arm (the unchanged image) is classified correctly count. The prediction may be right again at a
higher severity; only the first change counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from gateway.analysis.effects import Integers, Outcomes
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.effects import FailurePoints

NEVER = SEVERITIES[-1] + 1


def first_change(unchanged: str, predictions: Mapping[int, str]) -> int | None:
    """The lowest severity in `predictions` (class by severity) whose class differs from `unchanged`, or None."""
    return min((severity for severity, predicted in predictions.items() if predicted != unchanged), default=None)


def corruption_of(value: str) -> tuple[str, int]:
    """Name and severity of a corruption's value: "gaussian noise 3" → ("gaussian noise", 3)."""
    name, severity = value.rsplit(" ", 1)
    return name, int(severity)


def failure_points(outcomes: Outcomes) -> list[FailurePoints]:
    """The number of images that first fail at each severity, per corruption, sorted by name.

    `outcomes` are those of method `corruptions`; the values of its cells hold name and severity.
    """
    rows: dict[str, list[tuple[int, Integers]]] = defaultdict(list)
    for cell, members in outcomes.cells.items():
        corruption, severity = corruption_of(cell.value)
        rows[corruption].append((severity, members))
    return [_points(corruption, rows[corruption], outcomes) for corruption in sorted(rows)]


def _points(corruption: str, rows: list[tuple[int, Integers]], outcomes: Outcomes) -> FailurePoints:
    members = np.concatenate([rows for _, rows in rows])
    severity = np.concatenate([np.full(len(rows), severity) for severity, rows in rows])
    correct = outcomes.ranks.null.correct[members]
    members, severity = members[correct], severity[correct]
    flipped = outcomes.ranks.counterfactual.predicted[members] != outcomes.ranks.null.predicted[members]
    sources, index = np.unique(outcomes.source[members], return_inverse=True)
    first = np.full(len(sources), NEVER)
    np.minimum.at(first, index[flipped], severity[flipped])
    counts = np.bincount(first, minlength=NEVER + 1)
    middle = int(np.sort(first)[(len(first) - 1) // 2]) if len(first) else NEVER
    return FailurePoints(
        corruption=corruption,
        sources=len(sources),
        first=[int(counts[severity]) for severity in SEVERITIES],
        never=int(counts[NEVER]),
        median=None if middle == NEVER else middle,
    )
