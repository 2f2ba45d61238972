"""The papers' tables and figures in kind, as Markdown, from a job's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from research.paper_tables.printing import NOTHING, grid, rate
from research.papers.printed import at, difference, percent, points, wrong
from shared.schemas.effects import Estimate, Interval
from shared.schemas.metrics import Accuracy, PaperMetrics
from shared.schemas.results import Funnel, JobResults, ModelResults

AT = (1, 5)
VALID = ("valid", "valid, of flipped")
_ACCURACY_NOTE = (
    "acc@1; acc@5 with 95 % intervals. Differences in points: *less all originals* is acc@k of the accepted "
    "counterfactuals minus that of all originals (equation 3), *less their originals* minus that of the originals with "
    "an accepted counterfactual, each once, and *Δacc of pairs* compares each with its own original. "
    "The null arms show what the editor changes by itself."
)
_ERRORS_NOTE = (
    "Compare the paper with *originals*, which are all of the job's; the next column has those with an accepted "
    "counterfactual. A counterfactual is valid if its label is kept and its edit is not missing, by reviews of people."
)
_OVERLAP_NOTE = (
    "Compare the paper's mIoU with *each original once*. The other columns pool accepted pairs: an original counts "
    "once for each of its accepted counterfactuals. All average over the classes of the ground truth."
)
TEST_SETS = {"reconstruction": "reconstructed", "lance-r": "LANCE-R", "lance": "LANCE", "dillema": "DILLEMA"}


def lance_tables(results: JobResults, distances: Mapping[str, str]) -> str:
    """Table 2 (accuracy by test set), figure 3 (|Δp| by type of edit), validity, clusters (4.2), and the yield.

    `distances`: KID by method, as text.
    """
    tables = [
        _accuracy_by_test_set(results, distances),
        _probability_changes(results.results),
        _validity(results),
        _clusters(results.results),
        _yield(results.funnels),
    ]
    return "\n\n".join(tables)


def dillema_tables(results: JobResults) -> str:
    """Table I: validity and errors, all or none."""
    return "\n\n".join([_errors(results), _yield(results.funnels)])


def road_tables(results: JobResults) -> str:
    """mIoU on originals, null arms and counterfactuals, validity."""
    return "\n\n".join([_overlaps(results), _validity(results), _yield(results.funnels)])


def _accuracy_by_test_set(results: JobResults, distances: Mapping[str, str]) -> str:
    models = list(dict.fromkeys(entry.model for entry in results.results))
    measured = {(entry.model, entry.method): entry.metrics for entry in results.results if entry.metrics is not None}
    methods = [method for method in TEST_SETS if any(key[1] == method for key in measured)]
    firsts = [next((measured[model, name] for name in methods if (model, name) in measured), None) for model in models]
    body = [["originals, all", *(_levels(metrics, _on_originals) for metrics in firsts), NOTHING]]
    for method in methods:
        metrics = [measured.get((model, method)) for model in models]
        cells = [_levels(row, lambda level: rate(level.counterfactuals)) for row in metrics]
        body.append([TEST_SETS[method], *cells, distances.get(method, NOTHING)])
        for name, show in _DIFFERENCES.items():
            cells = [_levels(row, show) for row in metrics]
            body.append([f"{TEST_SETS[method]}, {name}", *cells, ""])
    heads = ["test set", *models, "KID × 1000"]
    return f"### Accuracy by test set (table 2)\n\n{_ACCURACY_NOTE}\n\n" + grid(heads, body)


def _levels(metrics: PaperMetrics | None, show: Callable[[Accuracy], str]) -> str:
    """A figure at 1 and at 5: "93 % (28/30; 79–98); 100 % (30/30; 88–100)"."""
    levels = [at(metrics, k) for k in AT]
    return "; ".join(NOTHING if level is None else show(level) for level in levels)


def _on_originals(level: Accuracy) -> str:
    return NOTHING if level.all_originals is None else rate(level.all_originals)


_DIFFERENCES: dict[str, Callable[[Accuracy], str]] = {
    "less all originals": lambda level: points(level.delta_all),
    "their originals": lambda level: rate(level.originals),
    "less their originals": lambda level: points(difference(level.counterfactuals, level.originals)),
    "Δacc of pairs": lambda level: points(level.delta),
    "null arms": lambda level: rate(level.nulls),
    "null arms, Δacc of pairs": lambda level: points(level.delta_null),
}


def _probability_changes(entries: Sequence[ModelResults]) -> str:
    """Figure 3: mean |Δp(ground truth)| by factor, beside that of the null arms."""
    body = [
        [
            TEST_SETS.get(entry.method, entry.method),
            change.factor,
            entry.model,
            f"{change.n} ({change.sources})",
            f"{change.value:.3f} ({change.low:.3f}–{change.high:.3f})",
            f"{change.null:.3f}",
        ]
        for entry in entries
        if entry.metrics is not None
        for change in entry.metrics.probability_changes
    ]
    title = "### Sensitivity by type of edit (figure 3)\n\n"
    if not body:
        return title + "No accepted edit with one change has probabilities."
    heads = ["method", "factor", "model", "edits (source images)", "mean \\|Δp\\|", "of their null arms"]
    return title + grid(heads, body)


def _clusters(entries: Sequence[ModelResults]) -> str:
    """Section 4.2: edits with similar phrases, formed on one half of the source images and tested on the other."""
    body = [
        [
            entry.model,
            TEST_SETS.get(entry.method, entry.method),
            cluster.label,
            "; ".join(cluster.phrases[:3]).replace("|", "\\|"),
            str(cluster.edits),
            points(cluster.screened),
            f"{points(cluster.delta_accuracy)} ({cluster.confirming_sources})",
            NOTHING if cluster.interval is None else _interval(cluster.interval),
            NOTHING if cluster.q_value is None else f"{cluster.q_value:.3f}",
            cluster.standing,
        ]
        for entry in entries
        for cluster in entry.clusters
    ]
    if not body:
        return "### Clusters of edits (section 4.2)\n\nNo class has enough accepted edits for clusters."
    heads = ["model", "method", "class", "phrases", "edits", "first half, points", "second half (images)"]
    return "### Clusters of edits (section 4.2)\n\n" + grid([*heads, "95 % interval", "q", "standing"], body)


def _interval(interval: Interval) -> str:
    return f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"


def _validity(results: JobResults) -> str:
    """P(valid) of the accepted counterfactuals, overall and of the flipped ones, by the reviews of people."""
    body = [
        [TEST_SETS.get(entry.method, entry.method), entry.model, *_shares_valid(results, entry)]
        for entry in results.results
        if entry.method != "reconstruction"
    ]
    return "### Validity, by reviews\n\n" + grid(["method", "model", *VALID], body)


def _errors(results: JobResults) -> str:
    heads = ["originals", "originals of accepted", "null arms", "counterfactuals", "all fail", "none fails"]
    figures = [*heads, *VALID]
    body = []
    for entry in results.results:
        metrics = entry.metrics
        if metrics is None:
            continue
        first = at(metrics, 1)
        shares = metrics.all_or_none
        body.append(
            [
                entry.model,
                NOTHING if first is None or first.all_originals is None else rate(wrong(first.all_originals)),
                NOTHING if first is None else rate(wrong(first.originals)),
                rate(metrics.error_rate_null),
                rate(metrics.error_rate),
                NOTHING if shares is None else f"{rate(shares.all_fail)}, k = {shares.k}",
                NOTHING if shares is None else rate(shares.none_fail),
                *_shares_valid(results, entry),
            ]
        )
    return f"### Errors and validity (table I)\n\n{_ERRORS_NOTE}\n\n" + grid(["error of", *figures], body)


def _shares_valid(results: JobResults, entry: ModelResults) -> tuple[str, str]:
    """P(valid) and P(valid | flipped) by the reviews of people; without enough of them, what is missing."""
    reviews = next((reviews for reviews in results.reviews if reviews.method == entry.method), None)
    flipped = next((share for share in reviews.flipped if share.model == entry.model), None) if reviews else None
    return _estimate(reviews.valid if reviews else None), _estimate(flipped.valid if flipped else None)


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "review accepted images first"
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
        once = NOTHING if alone is None else f"{percent(alone.mean_iou)} (n = {alone.images})"
        sets = (figures.originals, figures.nulls, figures.counterfactuals)
        shares = [percent(scores.mean_iou) for scores in sets]
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


def _yield(funnels: Sequence[Funnel]) -> str:
    body = [
        [
            TEST_SETS.get(funnel.method, funnel.method),
            str(funnel.proposed),
            str(funnel.rendered),
            rate(funnel.accepted),
            ", ".join(f"{count.check} {count.count}" for count in [*funnel.refused_by_text, *funnel.refused_by_image]),
        ]
        for funnel in funnels
    ]
    return "### Yield\n\n" + grid(["method", "proposed", "rendered", "accepted", "refused by"], body)
