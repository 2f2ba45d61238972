"""Figures of a model in cells, for tests of heat maps and of sentences."""

from __future__ import annotations

from shared.schemas.effects import Cell, CellEffect, Direction
from shared.schemas.estimates import Interval
from shared.schemas.results import ModelResults

INTERVAL = Interval(low=-0.9, high=-0.3, level=0.95, kind="betting")


def effect(value: str, points: int, label: str = "bus", direction: Direction = "to", sources: int = 20) -> CellEffect:
    """The effect of a cell; tested from 12 source images on."""
    tested = sources >= 12
    return CellEffect(
        cell=Cell(label=label, factor="weather", value=value, direction=direction),
        sources=sources,
        counterfactuals=sources,
        delta_accuracy=points / 100,
        delta_probability=None,
        interval=INTERVAL if tested else None,
        standing="nothing found" if tested else "too few images",
        images_needed=10 * sources,
    )


def results(method: str, *cells: CellEffect) -> ModelResults:
    """A classifier's figures under a method, with these cells."""
    return ModelResults(
        model="m", method=method, relation="labelled", sources=20, counterfactuals=40, left_out=0, cells=list(cells)
    )
