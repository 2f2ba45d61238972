"""The papers' tables and figures in kind, as Markdown, from a job's results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gateway.analysis.certainty import mean_interval
from shared.schemas.estimates import MeanOverlap, Rate
from shared.schemas.metrics import Accuracy, PaperMetrics
from shared.schemas.repairs import RepairView
from shared.schemas.result_rows import CounterfactualView
from shared.schemas.results import Funnel, JobResults, ModelResults
from tinyworld.paper_tables.printing import NOTHING, grid, rate

LEVEL = 0.95
AT = (1, 5)
_OVERLAP_NOTE = (
    "Compare the paper's mIoU with *each original once*. The other columns pool accepted pairs: an original counts "
    "once for each of its accepted counterfactuals. All average over the classes of the ground truth."
)
_TEST_SETS = {"reconstruction": "reconstructed", "lance-r": "LANCE-R", "lance": "LANCE", "dillema": "DILLEMA"}


def lance_tables(results: JobResults, edits: Sequence[CounterfactualView], distances: Mapping[str, str]) -> str:
    """Table 2 (accuracy by test set), figure 3 (sensitivity by type of edit), and the yield."""
    return "\n\n".join([_accuracy_by_test_set(results, distances), _sensitivity(edits), _yield(results.funnels)])


def dillema_tables(results: JobResults) -> str:
    """Table I: validity and errors, all or none."""
    return "\n\n".join([_errors(results), _yield(results.funnels)])


def road_tables(results: JobResults) -> str:
    """mIoU on originals, null arms and counterfactuals."""
    return "\n\n".join([_overlaps(results), _yield(results.funnels)])


def _accuracy_by_test_set(results: JobResults, distances: Mapping[str, str]) -> str:
    models = list(dict.fromkeys(entry.model for entry in results.results))
    measured = {(entry.model, entry.method): entry.metrics for entry in results.results if entry.metrics is not None}
    methods = [method for method in _TEST_SETS if any(key[1] == method for key in measured)]
    body = [["originals", *(_of(measured.get((model, methods[0])), "originals") for model in models), NOTHING]]
    for method in methods:
        cells = [_of(measured.get((model, method)), "counterfactuals") for model in models]
        body.append([_TEST_SETS[method], *cells, distances.get(method, NOTHING)])
        deltas = [_deltas(measured.get((model, method))) for model in models]
        body.append([f"{_TEST_SETS[method]}, Δacc (eq. 3)", *deltas, ""])
    note = "acc@1; acc@5 with 95 % intervals. Δacc: accepted counterfactuals less their originals, in points."
    return f"### Accuracy by test set (table 2)\n\n{note}\n\n" + grid(["test set", *models, "KID × 1000"], body)


def _of(metrics: PaperMetrics | None, which: str) -> str:
    levels = [_at(metrics, k) for k in AT]
    rates: list[Rate | None] = [None if level is None else getattr(level, which) for level in levels]
    return "; ".join(NOTHING if share is None else rate(share) for share in rates)


def _deltas(metrics: PaperMetrics | None) -> str:
    levels = [_at(metrics, k) for k in AT]
    return "; ".join(NOTHING if at is None or at.delta is None else f"{100 * at.delta:+.1f}" for at in levels)


def _at(metrics: PaperMetrics | None, k: int) -> Accuracy | None:
    return next((level for level in metrics.accuracy if level.k == k), None) if metrics is not None else None


def _sensitivity(edits: Iterable[CounterfactualView]) -> str:
    """Mean |Δp(ground truth)| by factor and model, sources weighted equally, with 95 % intervals over sources."""
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for edit in edits:
        if edit.method != "lance" or not edit.verdict.accepted or len(edit.changes) != 1:
            continue
        for opinion in edit.predictions:
            before, after = opinion.original, opinion.counterfactual
            if before is None or after is None:
                continue
            if before.ground_truth_probability is None or after.ground_truth_probability is None:
                continue
            change = abs(after.ground_truth_probability - before.ground_truth_probability)
            values[edit.changes[0].factor, opinion.model][edit.source.id].append(change)
    body = []
    for (factor, model), by_source in sorted(values.items()):
        means = np.array([np.mean(changes) for changes in by_source.values()])
        interval = mean_interval(means, LEVEL, 0)
        low, high = max(0.0, interval.low), interval.high
        body.append([factor, model, str(len(means)), f"{means.mean():.3f} ({low:.3f}–{high:.3f})"])
    if not body:
        return "### Sensitivity by type of edit (figure 3)\n\nNo accepted edit with one change has probabilities."
    return "### Sensitivity by type of edit (figure 3)\n\n" + grid(
        ["factor", "model", "sources", "mean \\|Δp\\|"], body
    )


def _errors(results: JobResults) -> str:
    body = []
    for entry in results.results:
        metrics = entry.metrics
        if metrics is None:
            continue
        first = _at(metrics, 1)
        shares = metrics.all_or_none
        body.append(
            [
                entry.model,
                NOTHING if first is None else _error_of(first.originals),
                rate(metrics.error_rate_null),
                rate(metrics.error_rate),
                NOTHING if shares is None else f"{rate(shares.all_fail)}, k = {shares.k}",
                NOTHING if shares is None else rate(shares.none_fail),
                _validity(results, entry),
            ]
        )
    heads = [
        "model",
        "error, originals",
        "null arms",
        "counterfactuals",
        "all fail",
        "none fails",
        "label kept, of flipped",
    ]
    return "### Errors and validity (table I)\n\n" + grid(heads, body)


def _error_of(share: Rate) -> str:
    if share.value is None:
        return NOTHING
    wrong = share.n - share.count
    return f"{100 * (1 - share.value):.1f} % ({wrong}/{share.n})"


def _validity(results: JobResults, entry: ModelResults) -> str:
    """P(valid | flipped) by the reviews of people; without enough of them, what is missing."""
    reviews = next((reviews for reviews in results.reviews if reviews.method == entry.method), None)
    flipped = next((share for share in reviews.flipped if share.model == entry.model), None) if reviews else None
    if flipped is None or flipped.valid is None:
        return "review accepted images first"
    estimate = flipped.valid
    return f"{100 * estimate.value:.1f} % ({100 * estimate.low:.0f}–{100 * estimate.high:.0f})"


def _overlaps(results: JobResults) -> str:
    body = []
    for entry in results.results:
        figures = entry.segmentation
        if figures is None:
            continue
        pooled, interval = figures.delta_pooled_iou, figures.pooled_interval
        change = NOTHING if pooled is None else f"{100 * pooled:+.1f}"
        if interval is not None:
            change += f" ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"
        alone = figures.all_originals
        once = NOTHING if alone is None else f"{_percent(alone.mean_iou)} (n = {alone.images})"
        sets = (figures.originals, figures.nulls, figures.counterfactuals)
        shares = [_percent(scores.mean_iou) for scores in sets]
        body.append([entry.model, once, *shares, change, rate(figures.lost)])
    heads = [
        "model",
        "mIoU, each original once",
        "originals of the pairs",
        "null arms",
        "counterfactuals",
        "less null arms, points",
        "a class lost",
    ]
    return f"### mIoU of pooled pixels\n\n{_OVERLAP_NOTE}\n\n" + grid(heads, body)


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.2f} %"


def repair_table(repairs: Sequence[RepairView]) -> str:
    """What retraining wins, by model and set of source images."""
    body = [
        [
            view.request.model,
            figures.set,
            str(figures.sources),
            *(f"{arm.arm}: {_level(arm.accuracy)}" for arm in figures.arms),
        ]
        for view in repairs
        if view.result is not None
        for figures in view.result.sets
    ]
    if not body:
        return ""
    heads = ["model", "judged on", "source images", *[""] * (len(body[0]) - 3)]
    return "### What retraining wins, on source images that nothing was trained on\n\n" + grid(heads, body)


def _level(accuracy: Rate | MeanOverlap) -> str:
    if isinstance(accuracy, Rate):
        return rate(accuracy)
    if accuracy.value is None:
        return NOTHING
    return f"{100 * accuracy.value:.1f} % IoU ({100 * accuracy.low:.0f}–{100 * accuracy.high:.0f})"


def _yield(funnels: Sequence[Funnel]) -> str:
    body = [
        [
            _TEST_SETS.get(funnel.method, funnel.method),
            str(funnel.proposed),
            str(funnel.rendered),
            rate(funnel.accepted),
            ", ".join(f"{count.check} {count.count}" for count in [*funnel.refused_by_text, *funnel.refused_by_image]),
        ]
        for funnel in funnels
    ]
    return "### Yield\n\n" + grid(["method", "proposed", "rendered", "accepted", "refused by"], body)
