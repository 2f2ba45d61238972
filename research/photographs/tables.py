"""The trial's figures as Markdown: effects of each background, findings, the suite, and what the repair wins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from gateway.analysis.certainty import LEVEL, mean_interval
from research.paper_tables.printing import NOTHING, grid, rate
from research.papers.retraining import repair_table
from shared.schemas.effects import CellEffect, Interval
from shared.schemas.repairs import RepairView
from shared.schemas.results import CounterfactualView, JobResults
from shared.schemas.suites import SuiteDetail


def tables(
    results: JobResults, edits: Iterable[CounterfactualView], suite: SuiteDetail, repair: RepairView | None
) -> str:
    """All of them; `repair` None: there was none."""
    size = f"Suite: {suite.counterfactuals} counterfactuals."
    parts = [
        _whole_number(results),
        "### Compositions, over all classes\n\n" + effects_by_value(edits),
        _findings(results),
        _cells(results),
        size,
    ]
    return "\n\n".join([*parts, repair_table([repair] if repair else [])]).strip()


def _whole_number(results: JobResults) -> str:
    body = [
        [
            figures.method,
            str(figures.sources),
            str(figures.counterfactuals),
            rate(accuracy.originals),
            rate(figures.metrics.error_rate_null),
            rate(figures.metrics.error_rate),
        ]
        for figures in results.results
        if figures.metrics is not None
        for accuracy in figures.metrics.accuracy[:1]
    ]
    heads = ["method", "source images", "counterfactuals", "right on originals", "wrong on null arms", "wrong"]
    return "### Accuracy\n\n" + grid(heads, body)


def effects_by_value(edits: Iterable[CounterfactualView]) -> str:
    """The effect of each composition over all classes: correct on it minus correct on the null arm, by source image."""
    differences: dict[str, list[float]] = defaultdict(list)
    for edit in edits:
        for opinion in edit.predictions:
            changed, null = opinion.counterfactual, opinion.null_arm
            if edit.method == "compose" and edit.counted and changed is not None and null is not None:
                right = [view.predicted == edit.source.ground_truth for view in (changed, null)]
                differences[edit.changes[0].to_value].append(float(right[0]) - float(right[1]))
    body = []
    for value, of_sources in sorted(differences.items(), key=lambda item: float(np.mean(item[1]))):
        interval = mean_interval(np.array(of_sources), LEVEL, 0)
        body.append([value, str(len(of_sources)), f"{100 * np.mean(of_sources):+.0f}", _text(interval)])
    heads = ["value", "source images", "effect, points", "95 % interval"]
    return grid(heads, body)


def _findings(results: JobResults) -> str:
    findings = [(figures.method, effect) for figures in results.results for effect in figures.findings]
    if not findings:
        return "### Findings\n\nNone."
    return "### Findings\n\n" + "\n".join(f"* {method}: {effect.sentence}" for method, effect in findings)


def _cells(results: JobResults) -> str:
    body = [
        [figures.method, effect.cell.label, effect.cell.value, str(effect.sources), *_effect(effect), effect.standing]
        for figures in results.results
        for effect in figures.cells
        if effect.interval is not None and effect.cell.direction == "to"
    ]
    heads = ["method", "class", "value", "source images", "effect, points", "95 % interval", "standing"]
    return "### Effects in cells with enough images\n\n" + grid(heads, body)


def _effect(effect: CellEffect) -> tuple[str, str]:
    return f"{100 * effect.delta_accuracy:+.0f}", _text(effect.interval)


def _text(interval: Interval | None) -> str:
    return NOTHING if interval is None else f"{100 * interval.low:+.0f} to {100 * interval.high:+.0f}"
