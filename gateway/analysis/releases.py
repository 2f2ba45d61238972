"""Two releases on the same images: the baseline's answer to an image stands where a null arm's stands in an effect.

So a comparison is paired and resampled over source images, in one family: every cell of every method, all
counterfactuals of each method, and the originals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval, sign_flip_p
from gateway.analysis.effects import Floats, Integers, Outcomes
from gateway.analysis.findings import benjamini_hochberg
from gateway.analysis.limits import FALSE_DISCOVERY_RATE, LEAST_SOURCES
from gateway.analysis.wording import points
from shared.schemas.results import Cell, Interval, Relation
from shared.schemas.suites import CellComparison, Judgement
from shared.seeds import derive_seed

ORIGINALS = ""
Place = tuple[str, Cell | None]
"""A method (`ORIGINALS`: none) and a cell of it (None: all its images)."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """n images of some source images: whether the release is right on each, and whether the other is."""

    source: Integers
    right: NDArray[np.bool_]
    other: NDArray[np.bool_]

    def at(self, rows: Integers) -> Pairs:
        """Those of some rows."""
        return Pairs(self.source[rows], self.right[rows], self.other[rows])

    def differences(self) -> Floats:
        """Per source image, the mean of right − right of the other, in −1 … 1."""
        _, place, counts = np.unique(self.source, return_inverse=True, return_counts=True)
        return np.asarray(np.bincount(place, self.right.astype(float) - self.other) / counts)


def against_null_arms(release: Mapping[str, Outcomes], relation: Relation) -> dict[Place, Pairs]:
    """The counterfactuals of each method and cell, each with its null arm."""
    places: dict[Place, Pairs] = {}
    for method, seen in release.items():
        pairs = Pairs(seen.source, seen.counterfactual.correct, seen.null.correct)
        places[method, None] = pairs
        places |= {(method, cell): pairs.at(rows) for cell, rows in _cells(seen, relation).items()}
    return places


def against_baseline(
    release: Mapping[str, Outcomes], baseline: Mapping[str, Outcomes], relation: Relation
) -> dict[Place, Pairs]:
    """The counterfactuals of each method and cell that both answered, and the originals where they can be wrong.

    Both number source images and counterfactuals alike: they are runs over one suite.
    """
    places: dict[Place, Pairs] = {}
    originals: dict[int, tuple[bool, bool]] = {}
    for method, mine in release.items():
        theirs = baseline[method]
        width = int(max(mine.ordinal.max(initial=0), theirs.ordinal.max(initial=0))) + 1
        _, here, there = np.intersect1d(
            mine.source * width + mine.ordinal, theirs.source * width + theirs.ordinal, return_indices=True
        )
        pairs = Pairs(mine.source[here], mine.counterfactual.correct[here], theirs.counterfactual.correct[there])
        place = np.full(len(mine.source), -1, np.int64)
        place[here] = np.arange(len(here))
        places[method, None] = pairs
        for cell, rows in _cells(mine, relation).items():
            places[method, cell] = pairs.at(place[rows][place[rows] >= 0])
        both = zip(mine.original.correct[here].tolist(), theirs.original.correct[there].tolist(), strict=True)
        originals |= dict(zip(pairs.source.tolist(), both, strict=True))
    if relation == "labelled":
        right = np.array(list(originals.values()), bool).reshape(-1, 2)
        places[ORIGINALS, None] = Pairs(np.array(list(originals), np.int64), right[:, 0], right[:, 1])
    return places


def judge(places: Mapping[Place, Pairs], max_drop: float, seed: int) -> list[CellComparison]:
    """Every place that has images, drops first, then by difference.

    `max_drop` is in 0 … 1. A place is tested from 12 source images on. It is a drop when Benjamini-Hochberg rejects it
    at 5 % and its interval at the level adjusted for selection (FCR, as in `findings.assess`) lies beyond `max_drop`;
    it is held when its own 95 % interval lies above −`max_drop`.
    """
    found = {place: (pairs, pairs.differences()) for place, pairs in places.items() if len(pairs.source)}
    family = [place for place, (_, values) in found.items() if len(values) >= LEAST_SOURCES]
    seeds = {place: derive_seed(seed, place[0], *_names(place[1])) for place in family}
    p_values = np.array([sign_flip_p(found[place][1], seeds[place]) for place in family])
    q_values = benjamini_hochberg(p_values)
    rejected = int((q_values <= FALSE_DISCOVERY_RATE).sum())
    tested = dict(zip(family, zip(p_values.tolist(), q_values.tolist(), strict=True), strict=True))
    judged = []
    for place, (pairs, values) in found.items():
        interval, selected = None, None
        p_value, q_value = tested.get(place, (None, None))
        if q_value is not None:
            interval = mean_interval(values, LEVEL, seeds[place])
        if q_value is not None and q_value <= FALSE_DISCOVERY_RATE:
            selected = mean_interval(values, 1 - FALSE_DISCOVERY_RATE * rejected / len(family), seeds[place])
        judgement = _judgement(interval, selected, max_drop)
        comparison = CellComparison(
            method=place[0],
            cell=place[1],
            sources=len(values),
            images=len(pairs.source),
            accuracy=clustered_rate(pairs.right, pairs.source),
            against=clustered_rate(pairs.other, pairs.source),
            difference=float(values.mean()),
            interval=interval,
            selected_interval=selected,
            p_value=p_value,
            q_value=q_value,
            judgement=judgement,
            sentence="",
        )
        judged.append(comparison.model_copy(update={"sentence": _sentence(comparison)}))
    return sorted(judged, key=lambda one: (one.judgement != "drop", one.difference, one.method, *_names(one.cell)))


def _cells(outcomes: Outcomes, relation: Relation) -> dict[Cell, Integers]:
    """Without ground truth a cell's label is what each model took the original for, so classes are taken together."""
    if relation == "labelled":
        return dict(outcomes.cells)
    merged: defaultdict[Cell, list[Integers]] = defaultdict(list)
    for cell, rows in outcomes.cells.items():
        merged[cell.model_copy(update={"label": ""})].append(rows)
    return {cell: np.unique(np.concatenate(rows)) for cell, rows in merged.items()}


def _judgement(interval: Interval | None, selected: Interval | None, max_drop: float) -> Judgement:
    if interval is None:
        return "too few images"
    if selected is not None and selected.high < -max_drop:
        return "drop"
    return "held" if interval.low >= -max_drop else "undecided"


def _names(cell: Cell | None) -> tuple[str, ...]:
    return () if cell is None else (cell.label, cell.factor, cell.value, cell.direction)


def _sentence(found: CellComparison) -> str:
    """What was seen there: "`bus` with weather changed to night (dillema): 41 % right against 83 %, −42 points, …"."""
    cell = found.cell
    if found.method == ORIGINALS:
        what = "originals"
    elif cell is None:
        what = f"all counterfactuals ({found.method})"
    else:
        label = f"`{cell.label}`" if cell.label else "all classes"
        what = f"{label} with {cell.factor} changed {cell.direction} {cell.value} ({found.method})"
    said = f"{what}: {_percent(found.accuracy.value)} right against {_percent(found.against.value)}"
    said += f", {points(found.difference)} points"
    interval = found.selected_interval or found.interval
    if interval is not None:
        said += f", 95 % interval {points(interval.low)} to {points(interval.high)}"
    return f"{said}, {found.sources} source images"


def _percent(value: float | None) -> str:
    return "nothing" if value is None else f"{round(100 * value)} %"
