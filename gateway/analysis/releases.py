"""Compares two releases on the same images: the baseline's prediction takes the place of the null arm's.

The comparison is paired and resampled over source images. Its family is every cell of every method, all
counterfactuals of each method, and the originals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from gateway.analysis.certainty import LEVEL, Level, accuracy, mean_interval, p_beyond
from gateway.analysis.effects import Floats, Grouped, Integers, Scores, Units
from gateway.analysis.limits import FALSE_DISCOVERY_RATE, LEAST_SOURCES
from shared.schemas.effects import Cell, Interval
from shared.schemas.results import Relation
from shared.schemas.suites import CellComparison, Judgement
from shared.seeds import derive_seed

ORIGINALS = ""
Place = tuple[str, Cell | None]
"""A method (`ORIGINALS`: none) and a cell of it (None: all its images)."""


@dataclass(frozen=True, slots=True)
class Pairs(Grouped):
    """n images by source image and group: the release's score in 0 … 1 (right: 1), and the baseline's (`baseline`)."""

    source: Integers
    score: Floats | NDArray[np.bool_]
    baseline: Floats | NDArray[np.bool_]
    group: Integers | None = None

    def differences(self) -> Floats:
        """Per group, the mean of `score` − `baseline`, in −1 … 1."""
        return Units.of(self.source, self.cluster).means(self.score.astype(float) - self.baseline)


def against_null_arms(release: Mapping[str, Scores], relation: Relation) -> dict[Place, Pairs]:
    """The counterfactuals of each method and cell that count, each with the arm that it is measured against."""
    places: dict[Place, Pairs] = {}
    for method, scores in release.items():
        for cell, members in members_of(scores, relation).items():
            rows = scores.rows_in(members)
            source, group = scores.source[scores.image[rows]], scores.cluster[scores.image[rows]]
            places[method, cell] = Pairs(source, scores.counterfactual[rows], scores.reference()[rows], group)
    return places


def against_baseline(
    release: Mapping[str, Scores], baseline: Mapping[str, Scores], relation: Relation
) -> dict[Place, Pairs]:
    """The counterfactuals of each method and cell with predictions of both, and the originals if they are labelled.

    Both runs use one suite, so they number source images and counterfactuals alike.
    """
    pairs: dict[Place, Pairs] = {}
    originals: dict[int, tuple[int, float, float]] = {}
    for method, new in release.items():
        old = baseline[method]
        old_members = members_of(old, relation)
        for cell, rows in members_of(new, relation).items():
            new_rows, old_rows = common_rows(new, rows, old, old_members.get(cell, rows[:0]))
            source, group = new.source[new.image[new_rows]], new.cluster[new.image[new_rows]]
            pairs[method, cell] = Pairs(source, new.counterfactual[new_rows], old.counterfactual[old_rows], group)
            if cell is None:
                columns = group, new.original[new.image[new_rows]], old.original[old.image[old_rows]]
                originals |= dict(zip(source.tolist(), zip(*map(np.ndarray.tolist, columns), strict=True), strict=True))
    if relation == "labelled":
        table = np.array(list(originals.values()), float).reshape(-1, 3)  # group, release's score, baseline's score
        sources = np.array(list(originals), np.int64)
        pairs[ORIGINALS, None] = Pairs(sources, table[:, 1], table[:, 2], table[:, 0].astype(np.int64))
    return pairs


def common_rows(new: Scores, new_rows: Integers, old: Scores, old_rows: Integers) -> tuple[Integers, Integers]:
    """The rows of both sides for the counterfactuals that both have. Each occurs at most once per side.

    Both number source images and counterfactuals alike.
    """
    width = int(max(new.ordinal.max(initial=0), old.ordinal.max(initial=0))) + 1
    new_keys, old_keys = (
        scores.source[scores.image[rows]] * width + scores.ordinal[scores.image[rows]]
        for scores, rows in ((new, new_rows), (old, old_rows))
    )
    _, new_indices, old_indices = np.intersect1d(new_keys, old_keys, return_indices=True)
    return new_rows[new_indices], old_rows[old_indices]


def judge(places: Mapping[Place, Pairs], max_drop: float, seed: int, level: Level = accuracy) -> list[CellComparison]:
    """The comparison of every place that has images, drops first, then by difference.

    `level`: a mean score with its interval. `max_drop` is in 0 … 1. A place is tested if it has at least 12 source
    images. The null hypothesis is that the difference is at most `max_drop`, either way. A place is a drop if
    Benjamini-Hochberg rejects its hypothesis at 5 % and its interval at the level adjusted for selection (FCR, as in
    `findings.assess`) lies beyond `max_drop`. It is held if its 95 % interval lies above −`max_drop`, unless neither
    side is ever right there: then nothing could drop, and it is undecided.
    """
    places = {place: pairs for place, pairs in places.items() if len(pairs.source)}
    differences = {place: pairs.differences() for place, pairs in places.items()}
    tests = family_tests(differences, max_drop, seed)
    comparisons = []
    for place, pairs in places.items():
        test = tests.get(place, NOT_TESTED)
        ever_right = bool(pairs.score.any() or pairs.baseline.any())
        comparison = CellComparison(
            method=place[0],
            cell=place[1],
            sources=len(np.unique(pairs.source)),
            images=len(pairs.source),
            accuracy=level(pairs.score, pairs.cluster, seed),
            against=level(pairs.baseline, pairs.cluster, seed),
            difference=float(differences[place].mean()),
            interval=test.interval,
            selected_interval=test.selected_interval,
            p_value=test.p_value,
            q_value=test.q_value,
            judgement=_judgement(test.interval, test.selected_interval, max_drop, ever_right),
            sentence="",
        )
        comparisons.append(comparison)
    return sorted(
        comparisons, key=lambda row: (row.judgement != "drop", row.difference, row.method, *names_of(row.cell))
    )


class PlaceTest(NamedTuple):
    """The test of a place; `selected_interval` only if its hypothesis is rejected. All None: it was not tested."""

    p_value: float | None
    q_value: float | None
    interval: Interval | None
    selected_interval: Interval | None


NOT_TESTED = PlaceTest(None, None, None, None)


def family_tests(differences: Mapping[Place, Floats], beyond: float, seed: int) -> dict[Place, PlaceTest]:
    """The tests of all places with at least 12 differences (−1 … 1, one of each group), which form one family.

    The null hypothesis of a place is that its mean difference is at most `beyond` (0 … 1), either way.
    """
    family = {place: values for place, values in differences.items() if len(values) >= LEAST_SOURCES}
    seeds = {place: derive_seed(seed, place[0], *names_of(place[1])) for place in family}
    p_values = np.array([p_beyond(values, beyond, seeds[place]) for place, values in family.items()])
    q_values = false_discovery_control(p_values)
    rejected = q_values <= FALSE_DISCOVERY_RATE
    tests = {}
    for number, (place, values) in enumerate(family.items()):
        interval = mean_interval(values, LEVEL, seeds[place])
        selected = None
        if rejected[number]:
            level = 1 - FALSE_DISCOVERY_RATE * int(rejected.sum()) / len(family)
            selected = mean_interval(values, level, seeds[place])
        tests[place] = PlaceTest(float(p_values[number]), float(q_values[number]), interval, selected)
    return tests


def members_of(scores: Scores, relation: Relation) -> dict[Cell | None, Integers]:
    """The rows of each cell, and of all whole images.

    Without ground truth a cell's label is each model's own prediction, so cells of all labels are merged.
    """
    whole: dict[Cell | None, Integers] = {None: scores.whole}
    if relation == "labelled":
        return whole | dict(scores.cells)
    merged: defaultdict[Cell, list[Integers]] = defaultdict(list)
    for cell, rows in scores.cells.items():
        merged[cell.model_copy(update={"label": ""})].append(np.intersect1d(rows, scores.whole))
    return whole | {cell: np.unique(np.concatenate(rows)) for cell, rows in merged.items()}


def _judgement(interval: Interval | None, selected: Interval | None, max_drop: float, ever_right: bool) -> Judgement:
    if interval is None:
        return "too few images"
    if selected is not None and selected.high < -max_drop:
        return "drop"
    return "held" if interval.low >= -max_drop and ever_right else "undecided"


def names_of(cell: Cell | None) -> tuple[str, ...]:
    """The parts of a cell's name; none for all images."""
    return () if cell is None else (cell.label, cell.factor, cell.value, cell.direction)
