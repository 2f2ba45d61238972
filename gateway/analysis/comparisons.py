"""Compares the effects of two sides (two models, methods or jobs) on the same source images.

A side's effect on a counterfactual is its score minus that on the arm it is measured against. Sides are paired by
counterfactual where both have the same ones, otherwise by source image: the mean effect of one side's counterfactuals
minus the mean effect of the other's. The family is all counterfactuals and every cell that both sides have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gateway.analysis.effects import Floats, Integers, Scores, Units
from gateway.analysis.limits import BEYOND
from gateway.analysis.releases import NOT_TESTED, Place, common_rows, family_tests, members_of, names_of
from shared.schemas.comparisons import CellDifference, Judgement, Pairing
from shared.schemas.effects import Cell, Interval
from shared.schemas.results import Relation

JUDGEMENTS: tuple[Judgement, ...] = ("worse", "better", "no difference found", "too few images")
_DIGITS = 9  # decimal digits of a difference, so that rounding errors are no disagreement


def number_alike(scores: Scores, number: Integers, group: Integers) -> Scores:
    """A side's scores with the numbers of source images and groups that both sides share.

    `number` and `group` are indexed by the side's own number of a source image; −1 if the other side lacks it.
    """
    return replace(scores, source=number[scores.source], group=group[scores.source])


@dataclass(frozen=True, slots=True)
class PairedImages:
    """n source images, ascending, with their groups and the mean effect of each side (−1 … 1)."""

    image: Integers
    group: Integers
    effect: Floats
    other_effect: Floats

    @property
    def units(self) -> Units:
        """Averages over the source images of a group."""
        return Units.of(self.image, self.group)

    def differences(self) -> Floats:
        """Per group the mean of effect − other effect, in −2 … 2."""
        return self.units.means(self.effect - self.other_effect)


@dataclass(frozen=True, slots=True)
class CellRows:
    """The rows of a cell that both sides have, and that count. With `pairing` "edit" they are pairs, in one order."""

    this: Scores
    other: Scores
    rows: Integers
    other_rows: Integers
    pairing: Pairing

    def images(self) -> PairedImages:
        """The effects of each source image that both sides have."""
        image, effect, group = _image_effects(self.this, self.rows)
        other_image, other_effect, _ = _image_effects(self.other, self.other_rows)
        common, index, other_index = np.intersect1d(image, other_image, assume_unique=True, return_indices=True)
        return PairedImages(common, group[index], effect[index], other_effect[other_index])


def cell_rows(this: Scores, other: Scores, relation: Relation, pairing: Pairing) -> dict[Cell | None, CellRows]:
    """The rows of all counterfactuals (None) and of each cell that both sides have. See `number_alike`.

    Without ground truth, cells of all classes are merged.
    """
    others = members_of(other, relation)
    return {
        cell: _pair_rows(this, rows, other, others[cell], pairing)
        for cell, rows in members_of(this, relation).items()
        if cell in others
    }


def _pair_rows(this: Scores, rows: Integers, other: Scores, other_rows: Integers, pairing: Pairing) -> CellRows:
    rows, other_rows = _counted(this, rows), _counted(other, other_rows)
    if pairing == "edit":
        rows, other_rows = common_rows(this, rows, other, other_rows)
    return CellRows(this, other, rows, other_rows, pairing)


def _counted(scores: Scores, members: Integers) -> Integers:
    rows = scores.rows_in(members)
    return rows[scores.source[scores.image[rows]] >= 0]


def _effects(scores: Scores, rows: Integers) -> Floats:
    return np.asarray(scores.counterfactual[rows] - scores.reference()[rows])


def _image_effects(scores: Scores, rows: Integers) -> tuple[Integers, Floats, Integers]:
    """The source images of the rows, ascending, with their mean effects and their groups."""
    image, first, index = np.unique(scores.source[scores.image[rows]], return_index=True, return_inverse=True)
    sums = np.bincount(index, _effects(scores, rows), len(image))
    return image, sums / np.bincount(index, minlength=len(image)), scores.cluster[scores.image[rows]][first]


def compare_cells(cells: Mapping[Cell | None, CellRows], seed: int) -> list[CellDifference]:
    """The difference in every cell with a source image of both sides: differences first, then by size.

    A cell is tested if it has at least 12 source images (or groups). The null hypothesis is that the difference is at
    most 5 points, either way. A difference is called if Benjamini-Hochberg rejects it at 5 % over all cells and the
    interval at the level adjusted for selection (FCR, as in `findings.assess`) lies beyond 5 points. The tests are of
    means in −1 … 1, so they take half of each difference.
    """
    paired = {_place(cell): rows.images() for cell, rows in cells.items()}
    paired = {place: images for place, images in paired.items() if len(images.image)}
    differences = {place: images.differences() for place, images in paired.items()}
    tests = family_tests({place: values / 2 for place, values in differences.items()}, BEYOND / 2, seed)
    compared = []
    for place, images in paired.items():
        test = tests.get(place, NOT_TESTED)
        selected, units = _doubled(test.selected_interval), images.units
        compared.append(
            CellDifference(
                cell=place[1],
                sources=len(images.image),
                groups=None if len(units.group) == len(images.image) else len(units.group),
                effect=float(units.means(images.effect).mean()),
                other_effect=float(units.means(images.other_effect).mean()),
                difference=float(differences[place].mean()),
                interval=_doubled(test.interval),
                selected_interval=selected,
                p_value=test.p_value,
                q_value=test.q_value,
                judgement="too few images" if test.interval is None else _judgement(selected),
            )
        )
    return sorted(compared, key=_order)


def _place(cell: Cell | None) -> Place:
    return "effects", cell


def _doubled(interval: Interval | None) -> Interval | None:
    if interval is None:
        return None
    return interval.model_copy(update={"low": 2 * interval.low, "high": 2 * interval.high})


def _judgement(selected: Interval | None) -> Judgement:
    if selected is not None and selected.high < -BEYOND:
        return "worse"
    return "better" if selected is not None and selected.low > BEYOND else "no difference found"


def _order(row: CellDifference) -> tuple[object, ...]:
    return JUDGEMENTS.index(row.judgement), -abs(row.difference), names_of(row.cell)


class DifferingEffect(NamedTuple):
    """A counterfactual or source image on which the effects differ. Ordinals name its counterfactuals on each side.

    `image` is the shared number of the source image. Ordinals are in the order of their effects, the largest first.
    """

    image: int
    effect: float
    other_effect: float
    ordinals: tuple[int, ...]
    other_ordinals: tuple[int, ...]


def list_disagreements(cell: CellRows, start: int, limit: int) -> tuple[list[DifferingEffect], int]:
    """A page of the disagreements in a cell, the largest difference first, and their total number.

    With `pairing` "edit" each entry is one counterfactual, otherwise one source image.
    """
    image, effect, other_effect = _compared_effects(cell)
    size = np.abs(effect - other_effect).round(_DIGITS)
    order = np.lexsort((np.arange(len(image)), image, -size))
    order = order[size[order] > 0]
    entries = []
    for index in order[start : start + limit].tolist():
        ordinals, other_ordinals = _ordinals_of(cell, index, int(image[index]))
        values = float(effect[index]), float(other_effect[index])
        entries.append(DifferingEffect(int(image[index]), *values, ordinals, other_ordinals))
    return entries, len(order)


def _compared_effects(cell: CellRows) -> tuple[Integers, Floats, Floats]:
    """The source image and both effects of each counterfactual, or with the other pairing of each source image."""
    if cell.pairing == "source image":
        paired = cell.images()
        return paired.image, paired.effect, paired.other_effect
    image = cell.this.source[cell.this.image[cell.rows]]
    return image, _effects(cell.this, cell.rows), _effects(cell.other, cell.other_rows)


def _ordinals_of(cell: CellRows, index: int, image: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The counterfactuals of each side that an entry of `_compared_effects` is about."""
    if cell.pairing == "source image":
        return _ordinals(cell.this, cell.rows, image), _ordinals(cell.other, cell.other_rows, image)
    ordinal = (int(cell.this.ordinal[cell.this.image[cell.rows[index]]]),)
    return ordinal, ordinal


def _ordinals(scores: Scores, rows: Integers, image: int) -> tuple[int, ...]:
    """The counterfactuals of a source image among the rows, the largest effect first."""
    rows = rows[scores.source[scores.image[rows]] == image]
    order = np.argsort(-np.abs(_effects(scores, rows)), kind="stable")
    return tuple(scores.ordinal[scores.image[rows[order]]].tolist())
