"""A release held against another, as sentences."""

from __future__ import annotations

from gateway.analysis.releases import ORIGINALS
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Metric
from shared.schemas.suites import CellComparison
from shared.wording import points


def comparison_sentence(found: CellComparison, metric: Metric) -> str:
    """What was seen there: "`bus` with weather changed to night (dillema): 41 % right against 83 %, −42 points, …"."""
    cell = found.cell
    if found.method == ORIGINALS:
        what = "originals"
    elif cell is None:
        what = f"all counterfactuals ({found.method})"
    else:
        label = {"": "all classes", ALL_CLASSES: "the whole image"}.get(cell.label, f"`{cell.label}`")
        what = f"{label} with {cell.factor} changed {cell.direction} {cell.value} ({found.method})"
    score = "right" if metric == "accuracy" else "IoU"
    said = f"{what}: {_percent(found.accuracy.value)} {score} against {_percent(found.against.value)}"
    said += f", {points(found.difference)} points"
    interval = found.selected_interval or found.interval
    if interval is not None:
        said += f", 95 % interval {points(interval.low)} to {points(interval.high)}"
    return f"{said}, {found.sources} source images"


def _percent(value: float | None) -> str:
    return "nothing" if value is None else f"{round(100 * value)} %"
