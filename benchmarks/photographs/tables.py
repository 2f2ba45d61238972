"""The trial's figures as Markdown: effects of each background, findings, the suite, and what the repair wins."""

from __future__ import annotations

from benchmarks.papers.tables import repair_table
from shared.schemas.repairs import RepairView
from shared.schemas.results import CellEffect, Interval, JobResults
from shared.schemas.suites import SuiteDetail
from tinyworld.paper_tables.printing import NOTHING, grid, rate


def tables(results: JobResults, suite: SuiteDetail, repair: RepairView | None) -> str:
    """All of them; `repair` None: there was none."""
    parts = [_whole(results), _findings(results), _cells(results), f"Suite: {suite.counterfactuals} counterfactuals."]
    return "\n\n".join([*parts, repair_table([repair] if repair else [])]).strip()


def _whole(results: JobResults) -> str:
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
