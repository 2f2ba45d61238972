"""Differences of effects as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from shared.schemas.comparisons import CellDifference
from shared.verdicts import is_suspected
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


def open_differences_sentence(cells: Sequence[CellDifference]) -> str:
    """How many cells may well differ without a test that says so, and the one of the most images; "" if there are none.

    It takes the place of "No difference found".
    """
    suspected = [
        row
        for row in cells
        if row.judgement in ("no difference found", "too few images")
        and is_suspected(row.difference, row.interval, row.groups or row.sources)
    ]
    if not suspected:
        return ""
    untested = sum(row.judgement == "too few images" for row in suspected)
    counts = [(len(suspected) - untested, "not significant"), (untested, "with too few images to test")]
    listed = ", ".join(f"{count} {words}" for count, words in counts if count)
    first = max(suspected, key=lambda row: abs(row.difference) * row.sources)
    differ = "1 cell differs" if len(suspected) == 1 else f"{len(suspected)} cells differ"
    return f"Not settled: {differ} by more than 5 points ({listed}). {difference_sentence(first)}"
