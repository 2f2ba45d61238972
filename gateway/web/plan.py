"""The plan of the job that the form describes, before it starts: labels, what it renders and what its images can show.

A script asks for it whenever the form changes. It names the images and sends a few, where it can read their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from gateway.api.dependencies import Gateway, Owner
from gateway.api.forms import MANY_IMAGES, MAX_FILES, MAX_MANIFEST_BYTES, files_of, parse, part_of, read_form
from gateway.context import Context
from gateway.intake.sources import SourceFile
from gateway.jobs.model_choice import choose_models
from gateway.jobs.submit import Submission, plan_submission, read_images
from gateway.models_under_test import models
from gateway.web import home
from gateway.web.form_fields import field_of, for_form
from gateway.web.rendering import render
from shared.problems import InvalidInput, Problem
from shared.schemas.base import Contract
from shared.schemas.jobs import JobSpec, ManifestImage
from shared.schemas.plans import JobPlan

LISTED = "listed"
MAX_LISTED_BYTES = 1024**2

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class ListedImages(Contract):
    """The images of the form by name, in their order; a few of them are sent."""

    images: Annotated[list[ManifestImage], Field(min_length=1, max_length=MAX_FILES)]


@dataclass(frozen=True, slots=True)
class Match:
    """The classes of a model, and the labels of the images that are not among them."""

    model: str
    classes: list[str]
    unknown: list[str]


@dataclass(frozen=True, slots=True)
class MaskedClass:
    """In how many masks a class is, and its share of the pixels of all masks, void left out (0 … 1)."""

    images: int
    share: float


@dataclass(frozen=True, slots=True)
class Preview:
    """What the form's job would be. `labels`: images by label; `masked`: classes of the masks; "" counts the others.

    Both are None where they cannot be read. `problem` is what is wrong with the `field` of the form; then there is no
    plan.
    """

    labels: Mapping[str, int] | None = None
    masked: Mapping[str, MaskedClass] | None = None
    matches: Sequence[Match] = ()
    plan: JobPlan | None = None
    problem: str = ""
    field: str = ""


@router.post("/plan")
async def show_plan(request: Request, gateway: Gateway, owner: Owner) -> HTMLResponse:
    """The plan as a fragment of HTML. What is wrong with the form is in the fragment, with its field."""
    parts = (*home.FIELDS, LISTED)
    try:
        async with read_form(request, parts, MAX_FILES, MAX_LISTED_BYTES, MANY_IMAGES, home.MAX_CHOICES + 1) as form:
            submission = await _planned(form, await home.with_mask_file(home.job_form(form), form))
            preview = await run_in_threadpool(_preview, gateway, owner, submission)
    except Problem as problem:
        preview = Preview(problem=for_form(problem).detail, field=field_of(problem))
    return render("_plan.html", preview=preview)


async def _planned(form: FormData, filled: home.JobForm) -> Submission:
    """The submission of the form, or of the images that it lists. Raises what these raise."""
    listed = await part_of(form, LISTED, MAX_LISTED_BYTES)
    if not listed:
        return await home.submission_of(form, filled)
    images = parse(ListedImages, listed, "the list of images").images
    manifest = await part_of(form, "manifest", MAX_MANIFEST_BYTES) or None
    files = files_of(form, "images")
    return Submission(spec=filled.spec(), uploaded=images, files=files, by_name=True, manifest=manifest)


def _preview(context: Context, owner: str, submission: Submission) -> Preview:
    """The plan; without it, the classes that the models do not know, and what else is wrong."""
    read = Preview()
    try:
        images = read_images(context, owner, submission)
        usable = [source for source in images.intake.sources if not source.failure]
        masks = submission.spec.masks is not None
        read = replace(read, masked=_masked(usable)) if masks else replace(read, labels=_labels(usable, submission))
        read = replace(read, matches=_matches(context, owner, submission.spec, read))
        return replace(read, plan=plan_submission(context, owner, submission, images))
    except Problem as problem:
        field = "label_map" if "unknown_labels" in problem.members else field_of(for_form(problem))
        return replace(read, problem=for_form(problem).detail, field=field)


def _labels(sources: Sequence[SourceFile], submission: Submission) -> Mapping[str, int]:
    labelled = submission.spec.ground_truth == "auto"
    return Counter(source.label if labelled and source.label else "" for source in sources)


def _masked(sources: Sequence[SourceFile]) -> Mapping[str, MaskedClass]:
    """The classes of the masks by their pixels, the most frequent first, then the images without a mask."""
    images, pixels = Counter[str](), Counter[str]()
    for mask in (source.mask for source in sources):
        images.update(mask.classes if mask else ("",))
        pixels.update(dict(zip(mask.classes, mask.pixels, strict=True)) if mask else {})
    without = {"": MaskedClass(images[""], 0)} if images[""] else {}
    return {name: MaskedClass(images[name], count / pixels.total()) for name, count in pixels.most_common()} | without


def _matches(context: Context, owner: str, spec: JobSpec, read: Preview) -> list[Match]:
    """The classes of each chosen model, beside those of the ground truth; masks are mapped when they are read."""
    try:
        chosen = choose_models(spec, context.profile, models.all_models(context, owner))
    except InvalidInput:  # the plan says it beside its field
        return []
    names = {spec.label_map.get(label, label) for label in read.labels or ()} | set(read.masked or ())
    return [Match(model.name, list(model.classes), sorted(names - set(model.classes) - {""})) for model in chosen]
