"""The plan of a job as lines on a terminal: what it would do, and which drops its images can detect."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shared.schemas.designs import Design
from shared.schemas.plans import DetectableDrop, JobPlan, Sensitivity
from shared.words.wording import checks_off_lines, usage_in_words

CLASSES_SHOWN = 20


def plan(job_plan: JobPlan) -> RenderableType:
    """The plan of a job: what it would do, and which drops its images can detect."""
    lines = [
        f"task      {job_plan.task_description}",
        f"methods   {', '.join(method.name for method in job_plan.methods)}",
        f"models    {', '.join(job_plan.models) or 'none'}",
        f"images    {job_plan.images}, {job_plan.labelled} with ground truth"
        + (f"; {job_plan.missing} to upload" if job_plan.missing else ""),
        *(f"test set  {line}" for line in job_plan.test_set[1:]),
        *domain(job_plan),
        *_design(job_plan.design),
        *checks(job_plan),
        *(
            f"renders   {cost.method}: at most {cost.edits:,} edits, {cost.null_arms:,} null arms, "
            f"{cost.sham_arms:,} sham arms"
            for cost in job_plan.renderings
        ),
        *(
            f"asks      {cost.model}: at most {cost.questions:,} questions, {usage_in_words(cost.usage)}"
            for cost in job_plan.questions
        ),
        *scaling(job_plan),
        *grouping(job_plan),
        *(f"unusable  {failure.name or failure.position}: {failure.reason}" for failure in job_plan.failures),
    ]
    return Group(Text("\n".join(lines)), sensitivity(job_plan.sensitivity))


def domain(job_plan: JobPlan) -> list[str]:
    """A line on images that the profile does not know, if there are any."""
    return [f"domain    {job_plan.outside_domain}"] if job_plan.outside_domain else []


def checks(job_plan: JobPlan) -> list[str]:
    """A line for each method whose images no check can refuse, and for each with checks that refuse nothing."""
    unchecked = [
        f"unchecked {name}: no check of its images has a threshold, so noise passes" for name in job_plan.unchecked
    ]
    off = {name: names for name, names in job_plan.checks_off.items() if name not in job_plan.unchecked}
    return [*unchecked, *(f"off       {line}" for line in checks_off_lines(off))]


def _design(design: Design) -> list[str]:
    """Lines on the changes that every image gets, and on the budget, if the job has a design."""
    if design.kind == "free":
        return []
    values = ", ".join(f"{chosen.value} ({chosen.factor})" for chosen in design.values)
    images = "every image" if design.kind == "balanced" else "to choose from"
    chosen = f", chosen by the {design.chosen_by} for this job; --value sets others" if design.chosen_by else ""
    lines = [f"design    {design.kind}" + (f"; {images}: {values}{chosen}" if values else "")]
    return lines if design.budget is None else [*lines, f"budget    {design.budget:,} renderings of each method"]


def scaling(job_plan: JobPlan) -> list[str]:
    """A line on scaled images, if the job scales any or may do so."""
    if job_plan.at_working_side:
        count, side = job_plan.at_working_side, job_plan.working_side
        images = "1 image has" if count == 1 else f"{count:,} images have"
        return [f"scaled    {images} {side:,} pixels on the longer side, to which larger files are scaled down"]
    if job_plan.missing:
        return [f"scaled    larger images, to {job_plan.working_side:,} pixels on the longer side"]
    return []


def grouping(job_plan: JobPlan) -> list[str]:
    """Lines on groups of images: their number, names that look like frames of sequences, and equal images."""
    lines = []
    if job_plan.groups is not None:
        adaptive = job_plan.design.kind == "adaptive"
        effect = "an adaptive job takes one image of each" if adaptive else "the images of a group count as one"
        lines.append(f"groups    {job_plan.groups}; {effect}")
    elif job_plan.look_like_sequences:
        folders = (
            "or use --group-by folder" if job_plan.folders_suffice else "and bring 12 or more sequences of a class"
        )
        lines.append(
            "groups    none, but file names look like frames of sequences. Frames of one sequence are not independent: "
            f"name each image's sequence in the manifest's column `group`, {folders}"
        )
    elif job_plan.may_be_one_sequence:
        lines.append(
            "groups    none, and the files are numbered in one run. Are they frames of one video? Then they are not "
            "independent: give them one `group` in a manifest, and bring 12 or more videos of a class"
        )
    return lines


def sensitivity(power: Sensitivity) -> RenderableType:
    """The detectable drop of each class. Classes with the same drop share a line."""
    by_drop: dict[tuple[int, int | None, float | None], list[DetectableDrop]] = {}
    for entry in power.classes:
        by_drop.setdefault((entry.sources, entry.groups, entry.drop), []).append(entry)
    sentences = [first.sentence + _more_classes(equal) for first, *equal in list(by_drop.values())[:CLASSES_SHOWN]]
    if len(by_drop) > CLASSES_SHOWN:
        sentences.append("The report lists the other classes.")
    if not power.classes:
        sentences.append("Without ground truth, classes are the predicted classes. Detectable drops of a class:")
        sentences += [
            f"{round(100 * entry.drop)} points with {entry.sources:,} {power.unit}s"
            for entry in power.needed
            if entry.sources is not None
        ]
    lines = Table.grid(padding=(0, 2))
    for number, text in enumerate([*sentences, power.assumption]):
        lines.add_row("" if number else "power   ", text)
    return lines


def _more_classes(drops: Sequence[DetectableDrop]) -> str:
    names = [f"`{entry.label}`" for entry in drops]
    if not names:
        return ""
    return f" The same holds for {', '.join(names[:-1])}{' and ' if len(names) > 1 else ''}{names[-1]}."
