"""The cells of results: change each, and which side of an edit has a cell's value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from shared.schemas.effects import Cell, CellEffect
from shared.schemas.results import ModelResults


def with_cells(
    results: Iterable[ModelResults], change: Callable[[ModelResults, CellEffect], CellEffect]
) -> list[ModelResults]:
    """The results of each model and method, with `change` applied to each of their cells."""
    return [
        figures.model_copy(update={"cells": [change(figures, effect) for effect in figures.cells]})
        for figures in results
    ]


def value_side(cell: Cell) -> Literal["from_value", "to_value"]:
    """The field of an edit or change that has the cell's value."""
    return "to_value" if cell.direction == "to" else "from_value"
