"""Comparisons of releases as sentences."""

from __future__ import annotations

from gateway.analysis.releases import ORIGINALS
from gateway.database.tables import Job
from shared.schemas.effects import Metric
from shared.schemas.suites import CellComparison
from shared.wording import change_in_words, class_in_words, percent, points

REVISION_CHARACTERS = 12


def release_name(run: Job) -> str:
    """The release that a run tests: its model and the beginning of its revision."""
    return f"{', '.join(run.models)} {run.stored_spec.revision[:REVISION_CHARACTERS]}"


def comparison_sentence(comparison: CellComparison, metric: Metric) -> str:
    """A comparison: "`bus` with weather changed to night (dillema): 41 % right against 83 %, −42 points, …"."""
    cell = comparison.cell
    if comparison.method == ORIGINALS:
        images = "originals"
    elif cell is None:
        images = f"all counterfactuals ({comparison.method})"
    else:
        images = f"{class_in_words(cell, '`')} {change_in_words(cell)} ({comparison.method})"
    score = "right" if metric == "accuracy" else "IoU"
    sentence = f"{images}: {percent(comparison.accuracy.value)} {score} against {percent(comparison.against.value)}"
    sentence += f", {points(comparison.difference)} points"
    interval = comparison.selected_interval or comparison.interval
    if interval is not None:
        sentence += f", 95 % interval {points(interval.low)} to {points(interval.high)}"
    sentence += f", {comparison.sources} source images"
    if not comparison.accuracy.value and not comparison.against.value:
        sentence += "; neither is ever right there, so nothing could drop"
    return sentence
