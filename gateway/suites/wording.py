"""Comparisons of releases as sentences."""

from __future__ import annotations

from gateway.analysis.releases import ORIGINALS
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Metric
from shared.schemas.suites import CellComparison
from shared.wording import percent, points


def comparison_sentence(comparison: CellComparison, metric: Metric) -> str:
    """A comparison: "`bus` with weather changed to night (dillema): 41 % right against 83 %, −42 points, …"."""
    cell = comparison.cell
    if comparison.method == ORIGINALS:
        what = "originals"
    elif cell is None:
        what = f"all counterfactuals ({comparison.method})"
    else:
        label = {"": "all classes", ALL_CLASSES: "the whole image"}.get(cell.label, f"`{cell.label}`")
        what = f"{label} with {cell.factor} changed {cell.direction} {cell.value} ({comparison.method})"
    score = "right" if metric == "accuracy" else "IoU"
    sentence = f"{what}: {percent(comparison.accuracy.value)} {score} against {percent(comparison.against.value)}"
    sentence += f", {points(comparison.difference)} points"
    interval = comparison.selected_interval or comparison.interval
    if interval is not None:
        sentence += f", 95 % interval {points(interval.low)} to {points(interval.high)}"
    return f"{sentence}, {comparison.sources} source images"
