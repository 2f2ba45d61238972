"""Differences of effects as sentences."""

from __future__ import annotations

from shared.schemas.comparisons import CellDifference
from shared.wording import change_in_words, class_in_words, points


def difference_sentence(row: CellDifference) -> str:
    """A difference: "`bus` with weather changed to night: −62 points against −3, difference −59, …"."""
    cell = row.cell
    images = "all counterfactuals" if cell is None else f"{class_in_words(cell, '`')} {change_in_words(cell)}"
    sentence = f"{images}: {points(row.effect)} points against {points(row.other_effect)}"
    sentence += f", difference {points(row.difference)}"
    interval = row.selected_interval or row.interval
    if interval is not None:
        adjusted = " (adjusted for selection)" if row.selected_interval else ""
        sentence += f", 95 % interval {points(interval.low)} to {points(interval.high)}{adjusted}"
    return f"{sentence}, {row.sources} source images"
