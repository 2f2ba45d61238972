"""The effects of one model and method as a heat map: a row for each value, a column for each class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.schemas.effects import CellEffect, Direction
from shared.schemas.results import ModelResults

STEPS = (0.05, 0.1, 0.2, 0.4, 0.7)  # effects from which on a cell has the next shade; 5 points are the tested limit
MOST_ROWS = 30  # of methods side by side


@dataclass(frozen=True, slots=True)
class HeatRow:
    """The effects of one value, one for each class; None where no pair counts."""

    factor: str
    value: str
    effects: list[CellEffect | None]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The cells of one direction."""

    direction: Direction
    classes: list[str]
    rows: list[HeatRow]


def heat_maps(figures: ModelResults) -> list[HeatMap]:
    """The map of the changes to values, and that of the changes from values, without those that have no cells."""
    maps = (_heat_map(figures.cells, direction) for direction in ("to", "from"))
    return [drawn for drawn in maps if drawn.rows]


def _heat_map(effects: Sequence[CellEffect], direction: Direction) -> HeatMap:
    drawn = [effect for effect in effects if effect.cell.direction == direction]
    classes = sorted({effect.cell.label for effect in drawn})
    by_place = {(effect.cell.factor, effect.cell.value, effect.cell.label): effect for effect in drawn}
    values = sorted({(effect.cell.factor, effect.cell.value) for effect in drawn})
    rows = [
        HeatRow(factor, value, [by_place.get((factor, value, name)) for name in classes]) for factor, value in values
    ]
    return HeatMap(direction, classes, rows)


def shade(effect: CellEffect) -> str:
    """The style class of an effect: "lower-1" (worse by 5 points) to "lower-5" (by 70), "higher-1" to "higher-5"."""
    step = sum(abs(effect.delta_accuracy) >= least for least in STEPS)
    return "level" if not step else f"{'lower' if effect.delta_accuracy < 0 else 'higher'}-{step}"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The effects of one model in the cells that several methods have; None where a method lacks the cell."""

    methods: list[ModelResults]
    rows: list[list[CellEffect | None]]


def side_by_side(results: Iterable[ModelResults]) -> SideBySide:
    """One model's `results` of several methods, at most 30 cells: those with a test first, then by lowest effect."""
    methods = list(results)
    by_method = [{_name(effect): effect for effect in figures.cells} for figures in methods]
    shared = {name for effects in by_method for name in effects if sum(name in others for others in by_method) > 1}
    rows = [[effects.get(name) for effects in by_method] for name in shared]
    return SideBySide(methods, sorted(rows, key=_lowest)[:MOST_ROWS])


def _name(effect: CellEffect) -> tuple[str, ...]:
    cell = effect.cell
    return cell.label, cell.factor, cell.value, cell.direction


def _lowest(row: Sequence[CellEffect | None]) -> tuple[bool, float, tuple[str, ...]]:
    effects = [effect for effect in row if effect is not None]
    untested = all(effect.interval is None for effect in effects)
    return untested, min(effect.delta_accuracy for effect in effects), _name(effects[0])
