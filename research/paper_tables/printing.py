"""Formatting for the tables: Markdown, rates, and the figures of one model in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from research.paper_tables.rows import ArmRow, ModelFigures
from shared.schemas.effects import Rate
from shared.schemas.metrics import Accuracy

NOTHING = "–"


def grid(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def rate(share: Rate) -> str:
    """A rate with its count and interval: "93 % (28/30; 79–98)"."""
    if share.value is None:
        return NOTHING
    return f"{100 * share.value:.0f} % ({share.count}/{share.n}; {100 * share.low:.0f}–{100 * share.high:.0f})"


def of_model(row: ArmRow, model: str, cell: Callable[[ModelFigures], str]) -> str:
    """Apply `cell` to the model's figures."""
    return next((cell(figures) for figures in row.models if figures.model == model), NOTHING)


def at(figures: ModelFigures, k: int) -> Accuracy | None:
    """The accuracy at k; None if the row does not have it."""
    return next((accuracy for accuracy in figures.metrics.accuracy if accuracy.k == k), None)


def number(value: float | None, digits: int = 0) -> str:
    """A number with `digits` digits after the decimal point."""
    return NOTHING if value is None else f"{value:,.{digits}f}"
