"""Jobs, findings and counterfactuals as tables and sentences on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shared.schemas.jobs import (
    CounterfactualView,
    JobDetail,
    JobPlan,
    JobsPage,
    MethodsReply,
    ModelsListing,
    PredictionView,
    Progress,
)
from shared.schemas.results import (
    CellEffect,
    DetectableDrop,
    JobResults,
    ModelResults,
    SegmentationMetrics,
    Sensitivity,
)
from shared.schemas.reviews import ReviewView
from shared.stages import in_flight, stage_words
from shared.wording import NO_FINDING, interval, p_value, percent, points, review_sentence

CLASSES_SHOWN = 20
PROVISIONAL = (
    "Provisional: the error rates of the automatic checks are unknown for these images. Look at the images yourself."
)


def findings(results: JobResults) -> RenderableType:
    """Findings per model under test and method: a table and sentences, or a line that says there are none.

    They begin with the commonest reasons of failures. Where nothing succeeded, there are only these.
    """
    parts: list[RenderableType] = [Text(line) for line in _left_out(results)]
    if results.sources == results.sources_failed + results.sources_cancelled:
        return Group(*parts)
    for measured in results.results:
        parts.append(Text(f"{measured.model} under {measured.method}", style="bold"))
        parts.append(Text(_basis(measured)))
        if measured.findings:
            parts.append(_findings_table(measured.findings))
            parts += [Padding(Text(f"• {effect.sentence}"), (0, 0, 0, 2)) for effect in measured.findings]
        else:
            parts.append(Text(f"  {NO_FINDING}"))
        if measured.segmentation is not None:
            parts.append(_classes_table(measured.segmentation))
        parts.append(Text(""))
    parts.append(Text(_standing_of_checks(results)))
    return Group(*parts)


def _left_out(results: JobResults) -> Iterator[str]:
    """Which source images the figures are without, and why."""
    if results.sources_failed:
        yield f"{results.sources_failed} of {results.sources} source images failed:"
        yield from (f"  {failed.count}: {failed.reason}" for failed in results.failure_reasons)
    if results.sources_cancelled:
        yield f"Cancelled: {results.sources_cancelled} of {results.sources} source images were not finished."


def _standing_of_checks(results: JobResults) -> str:
    shapes = sum(funnel.shapes_unchecked or 0 for funnel in results.funnels)
    named = sum(funnel.recaption_unchecked or 0 for funnel in results.funnels)
    notes = f"Shapes were not checked in {shapes} rendered images. " if shapes else ""
    if named:
        notes += (
            f"Captions could not check {named} rendered images: the captions of their sources do not name the class. "
        )
    return notes + _errors_of_checks(results)


def _errors_of_checks(results: JobResults) -> str:
    lines = [PROVISIONAL] if results.provisional else []
    lines += [review_sentence(method_reviews) for method_reviews in results.reviews]
    if results.calibration is not None and results.calibration.not_used:
        lines.append(f"The check errors of {results.calibration.data} are not used: {results.calibration.not_used}.")
    elif results.calibration is not None and results.calibration.data:
        lines.append(
            f"The error rates of the automatic checks were measured on {results.calibration.data}, for "
            f"{', '.join(results.calibration.errors)}. They apply if your images are similar."
        )
    return "\n".join(lines)


def plan(planned: JobPlan) -> RenderableType:
    """The plan of a job: what it would do, and which drops its images can detect."""
    lines = [
        f"task      {planned.task_description}",
        f"methods   {', '.join(method.name for method in planned.methods)}",
        f"models    {', '.join(planned.models) or 'none'}",
        f"images    {planned.images}, {planned.labelled} with ground truth"
        + (f"; {planned.missing} to upload" if planned.missing else ""),
        *(f"unchecked {name}: no check of its images has a threshold, so noise passes" for name in planned.unchecked),
        *scaling(planned),
        *grouping(planned),
        *(f"unusable  {failure.name or failure.position}: {failure.reason}" for failure in planned.failures),
    ]
    return Group(Text("\n".join(lines)), sensitivity(planned.sensitivity))


def scaling(planned: JobPlan) -> list[str]:
    """A line on images that are scaled down, where there are or may be any."""
    if planned.at_working_side:
        return [f"scaled    {planned.at_working_side} images, to {planned.working_side:,} pixels on the longer side"]
    if planned.missing:
        return [f"scaled    images of more than {planned.working_side:,} pixels on the longer side, to that"]
    return []


def grouping(planned: JobPlan) -> list[str]:
    """A line on groups of images, or on file names that look like them."""
    if planned.groups is not None:
        return [f"groups    {planned.groups}, which count as one image each"]
    if planned.look_like_sequences:
        return [
            "groups    none, but file names look like frames of sequences, which are not independent: name the "
            "sequence of each image in a manifest's column `group`, or use --group-by folder"
        ]
    return []


def sensitivity(power: Sensitivity) -> RenderableType:
    """The detectable drop of each class; classes with the same one share a line."""
    alike: dict[tuple[int, float | None], list[DetectableDrop]] = {}
    for shown in power.classes:
        alike.setdefault((shown.sources, shown.drop), []).append(shown)
    sentences = [first.sentence + _the_same(others) for first, *others in list(alike.values())[:CLASSES_SHOWN]]
    if len(alike) > CLASSES_SHOWN:
        sentences.append("The report lists the other classes.")
    if not power.classes:
        sentences.append("Without ground truth, classes are the predicted classes. Detectable drops of a class:")
        sentences += [
            f"{round(100 * n.drop)} points with {n.sources:,} images" for n in power.needed if n.sources is not None
        ]
    lines = Table.grid(padding=(0, 2))
    for number, text in enumerate([*sentences, power.assumption]):
        lines.add_row("" if number else "power   ", text)
    return lines


def _the_same(others: Sequence[DetectableDrop]) -> str:
    names = [f"`{shown.label}`" for shown in others]
    if not names:
        return ""
    return f" The same holds for {', '.join(names[:-1])}{' and ' if len(names) > 1 else ''}{names[-1]}."


def job(detail: JobDetail) -> RenderableType:
    """One job: state, images, funnel, failures."""
    counts = detail.progress.images
    lines = [
        f"job       {detail.id}",
        f"state     {detail.state}" + (f": {detail.failure}" if detail.failure else ""),
        f"task      {detail.task_description}",
        f"methods   {', '.join(method.name for method in detail.methods)}",
        f"models    {', '.join(detail.models) or 'none'}",
        f"images    {detail.images}, {detail.labelled} with ground truth: {counts.done} done, "
        f"{counts.in_progress} in progress, {counts.waiting} waiting, {counts.failed} failed, "
        f"{counts.cancelled} cancelled",
    ]
    if detail.progress.stage:
        lines.append(f"stage     {stage_words(detail.progress)}")
    if detail.progress.held_up:
        lines.append(f"held up   {detail.progress.held_up}")
    for funnel in detail.progress.funnel:
        rejected = "".join(f"; {count} rejected by {check}" for check, count in funnel.rejected.items())
        stages = f"{funnel.proposed} proposed, {funnel.rendered} rendered, {funnel.accepted} accepted"
        lines.append(f"{funnel.method:<9} {stages}{rejected}")
    lines += [f"failed    {failure.name or failure.position}: {failure.reason}" for failure in detail.failures]
    return Text("\n".join(lines))


def finished(progress: Progress) -> int:
    """The number of source images that need no more work."""
    return progress.images.done + progress.images.failed + progress.images.cancelled


def details(progress: Progress) -> str:
    """Source images in progress by stage, the counterfactuals so far, and what delays the job."""
    rendered, accepted = (sum(getattr(funnel, n) for funnel in progress.funnel) for n in ("rendered", "accepted"))
    counterfactuals = f"{rendered:,} counterfactuals, {accepted:,} accepted" if rendered else ""
    failed = f"{progress.images.failed:,} failed" if progress.images.failed else ""
    held_up = f"held up: {progress.held_up}" if progress.held_up else ""
    return " · ".join(filter(None, [in_flight(progress), failed, counterfactuals, held_up]))


def jobs(page: JobsPage) -> RenderableType:
    """Jobs as a table, newest first."""
    table = _table("job", "state", "created", "task")
    for listed in page.jobs:
        table.add_row(listed.id, listed.state, f"{listed.created_at:%Y-%m-%d %H:%M}", listed.task_description)
    return table


def counterfactuals(views: Iterable[CounterfactualView]) -> RenderableType:
    """Counterfactuals as a table: what changed, the verdict, and the predictions of each model under test."""
    table = _table("image", "truth", "changed", "verdict", "predictions")
    for view in views:
        changes = ", ".join(f"{change.from_phrase} → {change.to_phrase}" for change in view.changes)
        verdict = "accepted" if view.verdict.accepted else f"rejected: {view.verdict.check}"
        predictions = "\n".join(
            f"{prediction.model}: {_prediction(prediction.original)} → {_prediction(prediction.counterfactual)}"
            + (" (flipped)" if prediction.flipped else "")
            for prediction in view.predictions
            if prediction.original and prediction.counterfactual
        )
        table.add_row(
            view.source.name or str(view.source.position),
            view.source.ground_truth or ", ".join(view.source.mask_classes),
            changes,
            verdict,
            predictions,
        )
    return table


def _prediction(view: PredictionView) -> str:
    return view.predicted if view.segmentation is None else f"mIoU {percent(view.segmentation.mean_iou)}"


def reviews(views: Iterable[ReviewView]) -> RenderableType:
    """Reviews as a table."""
    table = _table("counterfactual", "reviewer", "verdict", "edit shown", "realism", "reviewed", "note")
    for view in views:
        shown = {True: "yes", False: "no", None: ""}[view.edit_shown]
        graded = "" if view.realism is None else str(view.realism)
        when = f"{view.reviewed_at:%Y-%m-%d %H:%M}"
        table.add_row(view.counterfactual, view.reviewer, view.verdict, shown, graded, when, Text(view.note))
    return table


def methods(reply: MethodsReply) -> RenderableType:
    """Methods with their papers and parameters."""
    table = _table("method", "default", "parameters", "paper")
    for method in reply.methods:
        properties = method.parameters.get("properties")
        names = ", ".join(properties) if isinstance(properties, dict) else ""
        table.add_row(method.name, "yes" if method.default else "", names, method.paper)
    return table


def models(listing: ModelsListing) -> RenderableType:
    """Models under test with their classes."""
    table = _table("model", "default", "yours", "classes", "description")
    for model in listing.models:
        shown = ", ".join(model.classes[:10]) + (" …" if len(model.classes) > 10 else "")
        table.add_row(
            model.name,
            "yes" if model.default else "",
            "yes" if model.uploaded else "",
            shown,
            f"quarantined: {model.quarantine}" if model.quarantine else model.description,
        )
    return table


def _basis(measured: ModelResults) -> str:
    pixels = measured.segmentation
    if pixels is not None:
        shares = [percent(arm.mean_iou) for arm in (pixels.originals, pixels.nulls, pixels.counterfactuals)]
        return (
            f"  {measured.counterfactuals} counterfactuals of {measured.sources} source images; mIoU {shares[0]} on "
            f"originals, {shares[1]} on null arms, {shares[2]} on counterfactuals"
        )
    accuracy = measured.metrics.accuracy[0] if measured.metrics and measured.metrics.accuracy else None
    right = ""
    if accuracy is not None and accuracy.originals.value is not None and accuracy.counterfactuals.value is not None:
        right = (
            f"; right on {accuracy.originals.value:.1%} of the originals, "
            f"{accuracy.counterfactuals.value:.1%} of the counterfactuals"
        )
    return f"  {measured.counterfactuals} counterfactuals of {measured.sources} source images{right}"


def _classes_table(pixels: SegmentationMetrics) -> Table:
    table = _table("class", "IoU originals", "null arms", "counterfactuals")
    for place, name in enumerate(pixels.classes):
        arms = (pixels.originals, pixels.nulls, pixels.counterfactuals)
        table.add_row(name, *(percent(arm.iou[place]) for arm in arms))
    return table


def _findings_table(effects: Iterable[CellEffect]) -> Table:
    table = _table("class", "change", "points", "interval", "images", "q")
    for effect in effects:
        table.add_row(
            effect.cell.label,
            f"{effect.cell.direction} {effect.cell.value} ({effect.cell.factor})",
            points(effect.delta_accuracy),
            interval(effect.selected_interval),
            str(effect.sources),
            p_value(effect.q_value),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
