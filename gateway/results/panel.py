"""The panel of reference models: a cell in which all models fail is suspect, because its images may be broken."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.analysis.limits import BEYOND
from gateway.results.cells import with_cells
from gateway.results.wording import panel_sentence
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.estimates import Panel
from shared.schemas.results import ModelResults


def with_panel(tested: Sequence[ModelResults], references: Sequence[ModelResults]) -> list[ModelResults]:
    """The results of the models under test; each weakness says how the reference models do in its cell.

    A model fails in a cell with at least 12 source images if its effect there is below −5 points. The cell is suspect
    if all models fail, those under test and at least one reference model, which must not share a weakness by training.
    """
    if not references:
        return list(tested)
    return with_cells(tested, lambda figures, effect: _with_panel(figures.method, effect, tested, references))


def _with_panel(
    method: str, effect: CellEffect, tested: Sequence[ModelResults], references: Sequence[ModelResults]
) -> CellEffect:
    if effect.standing != "weakness":
        return effect
    of_tested, of_references = (_fails(method, effect.cell, models) for models in (tested, references))
    panel = Panel(
        references=sorted(of_references),
        failing=sorted(name for name, fails in of_references.items() if fails),
        suspect=bool(of_references) and all([*of_references.values(), *of_tested.values()]),
    )
    return effect.model_copy(update={"panel": panel, "sentence": effect.sentence + panel_sentence(panel)})


def _fails(method: str, cell: Cell, models: Sequence[ModelResults]) -> dict[str, bool]:
    """Whether each model fails in the cell, of those that have enough source images in it."""
    return {
        figures.model: effect.delta_accuracy < -BEYOND
        for figures in models
        for effect in figures.cells
        if figures.method == method and effect.cell == cell and effect.interval is not None
    }
