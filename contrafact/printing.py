"""Jobs, findings and counterfactuals as tables and sentences on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shared.schemas.effects import Cell, CellEffect
from shared.schemas.findings import FindingView
from shared.schemas.jobs import JobDetail, JobsPage, MethodsReply, ModelsListing, Progress
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.metrics import SegmentationMetrics
from shared.schemas.own_images import OwnImagesView
from shared.schemas.results import FAILURE_MODES, CounterfactualView, JobResults, ModelResults, PredictionView
from shared.schemas.reviews import ReviewView
from shared.words.stages import in_flight, stage_words
from shared.words.verdicts import (
    any_testable,
    model_hints,
    not_testable_sentences,
    verdict_of,
    verdict_sentence,
)
from shared.words.wording import (
    NO_PAIR_COUNTS,
    asked_sentences,
    checks_off_lines,
    factor_in_words,
    interval,
    judge_sentence,
    nothing_accepted,
    nothing_compared,
    objects_lines,
    p_value,
    percent,
    points,
    review_sentence,
)

PROVISIONAL = "Provisional: the error rates of the automatic checks are unknown for {}. Look at the images yourself."


def findings(results: JobResults) -> RenderableType:
    """Findings per model under test and method: a table and sentences, or a line that says there are none.

    The most frequent reasons of failures come first. If every image failed, nothing follows them. If no edit was
    accepted, the first line says why.
    """
    lines: list[RenderableType] = [Text(line, style="bold") for line in not_testable_sentences(results)]
    lines += [Text(line) for line in _missing_sources(results)]
    if results.sources == results.sources_failed + results.sources_cancelled:
        return Group(*lines)
    lines += [Text(hint) for hint in [*model_hints(results), *asked_sentences(results)]]
    if any_testable(results) and (nothing := nothing_compared(results)):
        return Group(*lines, Text(nothing), Text(_check_notes(results)))
    for model_results in results.results:
        lines.append(Text(f"{model_results.model} under {model_results.method}", style="bold"))
        lines.append(Text(_accuracy_line(model_results)))
        if model_results.findings:
            lines.append(_findings_table(model_results.findings))
            for effect in model_results.findings:
                lines.append(Padding(Text(f"• {effect.sentence}"), (0, 0, 0, 2)))
                lines += [Padding(Text(effect.details, style="dim"), (0, 0, 0, 4))] if effect.details else []
        else:
            lines += [Text(f"  {line}") for line in _without_findings(results, model_results)]
        if model_results.segmentation is not None:
            lines.append(_classes_table(model_results.segmentation))
        lines.append(Text(""))
    lines.append(Text(_check_notes(results)))
    return Group(*lines)


def _without_findings(results: JobResults, of: ModelResults) -> Iterator[str]:
    """Why a model has no finding: what is ruled out, or not settled."""
    verdict = verdict_of(results, of)
    if verdict.kind == "not testable":
        yield "No verdict: see above."
    elif nothing := nothing_accepted(results, of.method):
        yield nothing
    else:
        yield verdict_sentence(verdict, of.metric) if of.counterfactuals else NO_PAIR_COUNTS


def _missing_sources(results: JobResults) -> Iterator[str]:
    """Images that the profile does not know, the number of source images without results, and the reasons."""
    if results.outside_domain:
        yield f"Do not rely on these results: {results.outside_domain}"
    if results.sources_failed:
        yield f"{results.sources_failed} of {results.sources} source images failed:"
        yield from (f"  {failure.count}: {failure.reason}" for failure in results.failure_reasons)
    if results.sources_cancelled:
        yield f"Cancelled: {results.sources_cancelled} of {results.sources} source images were not finished."


def _check_notes(results: JobResults) -> str:
    shapes = sum(funnel.shapes_unchecked or 0 for funnel in results.funnels)
    recaptions = sum(funnel.recaption_unchecked or 0 for funnel in results.funnels)
    labels = sum(funnel.label_unchecked for funnel in results.funnels)
    notes = f"Shapes were not checked in {shapes} rendered images. " if shapes else ""
    if labels:
        notes += (
            f"The label was not checked in {labels} rendered images: the scorer ranks it last of all classes in their "
            "source images. "
        )
    if moved := sum(funnel.moved_back for funnel in results.funnels):
        notes += f"The editor zoomed or shifted {moved} rendered images; they were moved back. "
    notes += "".join(f"{line} " for line in objects_lines(results.funnels))
    if recaptions:
        notes += (
            f"The caption check was skipped for {recaptions} rendered images: the captions of their source images do "
            "not name the class. "
        )
    return notes + _check_error_notes(results)


def _check_error_notes(results: JobResults) -> str:
    calibration = results.calibration
    of = "some methods" if calibration is not None and calibration.corrects else "these images"
    lines = [f"Checks that are off: {line}" for line in checks_off_lines(results.checks_off, results.funnels)]
    lines += [PROVISIONAL.format(of)] if results.provisional else []
    lines += [review_sentence(method_reviews) for method_reviews in results.reviews]
    lines += [judge_sentence(results.judge)] if results.judge else []
    if calibration is not None and calibration.not_used:
        lines.append(
            f"The error rates of the automatic checks on {calibration.data} are not used: {calibration.not_used}."
        )
    elif calibration is not None and calibration.data:
        lines.append(
            f"The error rates of the automatic checks were measured on {calibration.data}, for "
            f"{', '.join(calibration.errors)}. They apply if your images are similar."
        )
    return "\n".join(lines)


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


def count_finished(progress: Progress) -> int:
    """The number of source images that are done, failed or cancelled."""
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
    for view in page.jobs:
        table.add_row(view.id, view.state, f"{view.created_at:%Y-%m-%d %H:%M}", view.task_description)
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
    return view.predicted if view.map is None else f"mIoU {percent(view.scores.get(ALL_CLASSES))}"


def reviews(views: Iterable[ReviewView]) -> RenderableType:
    """Reviews as a table."""
    table = _table("counterfactual", "reviewer", "verdict", "edit shown", "realism", "failure", "reviewed", "note")
    for view in views:
        edit_shown = {True: "yes", False: "no", None: ""}[view.edit_shown]
        realism = "" if view.realism is None else str(view.realism)
        date = f"{view.reviewed_at:%Y-%m-%d %H:%M}"
        failure = "" if view.failure is None else FAILURE_MODES[view.failure]
        opinions = (view.verdict, edit_shown, realism, failure)
        table.add_row(view.counterfactual, view.reviewer, *opinions, date, Text(view.note))
    return table


def own_images(view: OwnImagesView) -> RenderableType:
    """Own images to mark, with their marks."""
    table = _table("image", "file", "factor", "value", "marks")
    for value in view.values:
        for image in value.images:
            marks = ", ".join(f"{mark.shows} ({mark.reviewer})" for mark in image.marks)
            table.add_row(image.image, Text(image.file_name), value.factor, Text(value.value), marks)
    return table


def noted_findings(views: Iterable[FindingView]) -> RenderableType:
    """Findings with id, status and note as a table."""
    table = _table("finding", "model", "method", "class", "change", "points", "status", "note")
    for view in views:
        effect, note = view.effect, view.effect.note
        status = note.status or "" if note else ""
        places = (
            view.id,
            view.model,
            view.method,
            effect.cell.label,
            change_of(effect.cell),
            points(effect.delta_accuracy),
            status,
        )
        table.add_row(*map(Text, places), Text(note.note if note else ""))
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
        classes = ", ".join(model.classes[:10]) + (" …" if len(model.classes) > 10 else "")
        table.add_row(
            model.name,
            "yes" if model.default else "",
            "yes" if model.uploaded else "",
            classes,
            f"quarantined: {model.quarantine}" if model.quarantine else model.description,
        )
    return table


def change_of(cell: Cell) -> str:
    """The change of a cell in a column: "to night (weather)"."""
    return f"{cell.direction} {cell.value} ({factor_in_words(cell.factor, cell.value)})"


def _accuracy_line(results: ModelResults) -> str:
    images = f"  {results.counterfactuals} counterfactuals of {results.sources} source images"
    segmentation = results.segmentation
    if segmentation is not None:
        arms = (segmentation.originals, segmentation.nulls, segmentation.counterfactuals)
        ious = [percent(arm.mean_iou) for arm in arms]
        return f"{images}; mIoU {ious[0]} on originals, {ious[1]} on null arms, {ious[2]} on counterfactuals"
    if (answers := results.answers) is not None:
        shares = [percent(arm[0].right.value) for arm in (answers.originals, answers.nulls, answers.counterfactuals)]
        looks = "" if answers.follows is None else f"; {percent(answers.follows.value)} change that must"
        right = f"right answers {shares[0]} on originals, {shares[1]} on null arms, {shares[2]} on counterfactuals"
        return f"{images}; {right}{looks}"
    accuracy = results.metrics.accuracy[0] if results.metrics and results.metrics.accuracy else None
    if accuracy is None or accuracy.originals.value is None or accuracy.counterfactuals.value is None:
        return images
    if results.relation == "metamorphic":
        return f"{images}; without ground truth: {accuracy.counterfactuals.value:.1%} predicted as their originals"
    return (
        f"{images}; accuracy {accuracy.originals.value:.1%} on originals, "
        f"{accuracy.counterfactuals.value:.1%} on counterfactuals"
    )


def _classes_table(segmentation: SegmentationMetrics) -> Table:
    table = _table("class", "IoU originals", "null arms", "counterfactuals")
    arms = (segmentation.originals, segmentation.nulls, segmentation.counterfactuals)
    for index, name in enumerate(segmentation.classes):
        table.add_row(name, *(percent(arm.iou[index]) for arm in arms))
    return table


def _findings_table(effects: Iterable[CellEffect]) -> Table:
    effects = list(effects)
    noted = ["status", "note"] if any(effect.note for effect in effects) else []
    table = _table("class", "change", "points", "interval", "images", "q", *noted)
    for effect in effects:
        note = [effect.note.status or "", effect.note.note] if effect.note else [""] * len(noted)
        table.add_row(
            effect.cell.label,
            change_of(effect.cell),
            points(effect.delta_accuracy),
            interval(effect.selected_interval),
            str(effect.sources),
            p_value(effect.q_value),
            *map(Text, note),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
