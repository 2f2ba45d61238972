"""What the tables are printed with: Markdown, rates, and the figures of one model in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.schemas.results import Accuracy, Rate
from tinyworld.paper_tables.rows import ArmRow, ModelFigures

NOTHING = "–"


def grid(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def rate(one: Rate) -> str:
    """A rate with its count and interval: "93 % (28/30; 79–98)"."""
    if one.value is None:
        return NOTHING
    return f"{100 * one.value:.0f} % ({one.count}/{one.n}; {100 * one.low:.0f}–{100 * one.high:.0f})"


def of_model(row: ArmRow, model: str, said: Callable[[ModelFigures], str]) -> str:
    """What `said` makes of the model's figures."""
    return next((said(one) for one in row.models if one.model == model), NOTHING)


def at(one: ModelFigures, k: int) -> Accuracy | None:
    """The accuracy at k, where the row has it."""
    return next((found for found in one.metrics.accuracy if found.k == k), None)


def number(value: float | None, digits: int = 0) -> str:
    """A number with so many digits after the point."""
    return NOTHING if value is None else f"{value:,.{digits}f}"
