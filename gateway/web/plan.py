"""The plan of the job that the form describes, before it starts: labels, what it renders and what its images can show.

A script asks for it whenever the form changes. It names the images without sending them, where it can read their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from gateway.api.dependencies import Gateway, Owner
from gateway.api.forms import MANY_IMAGES, MAX_FILES, MAX_MANIFEST_BYTES, parse, part_of, read_form
from gateway.context import Context
from gateway.jobs.choices import plan
from gateway.jobs.submit import Submission, plan_submission
from gateway.models_under_test import models
from gateway.web import home
from gateway.web.form_fields import field_of, for_form
from gateway.web.rendering import render
from shared.manifests import match_rows, parse_manifest
from shared.problems import InvalidInput, Problem
from shared.schemas.base import Contract
from shared.schemas.jobs import ManifestImage
from shared.schemas.plans import JobPlan

LISTED = "listed"
MAX_LISTED_BYTES = 1024**2

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class ListedImages(Contract):
    """The images of the form by name, in their order; they are not sent."""

    images: Annotated[list[ManifestImage], Field(min_length=1, max_length=MAX_FILES)]


@dataclass(frozen=True, slots=True)
class Match:
    """The classes of a model, and the labels of the images that are not among them."""

    model: str
    classes: list[str]
    unknown: list[str]


@dataclass(frozen=True, slots=True)
class Preview:
    """What the form's job would be. `labels`: images by label ("" without one), None where they cannot be read.

    `problem` is what is wrong with the `field` of the form; then there is no plan.
    """

    labels: Mapping[str, int] | None = None
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
    names = [image.name for image in images]
    manifest = await part_of(form, "manifest", MAX_MANIFEST_BYTES) or home.folder_manifest(names)
    if manifest:
        rows = match_rows(parse_manifest(manifest), names)
        images = [
            image.model_copy(update={"label": row.label, "group": row.group})
            for image, row in zip(images, rows, strict=True)
        ]
    return Submission(spec=filled.spec(), uploaded=images)


def _preview(context: Context, owner: str, submission: Submission) -> Preview:
    """The plan; without it, the labels that the models do not know, and what else is wrong."""
    labels = None
    if submission.uploaded is not None and submission.spec.masks is None:
        labelled = submission.spec.ground_truth == "auto"
        labels = Counter(image.label if labelled and image.label else "" for image in submission.uploaded)
    matches: list[Match] = []
    try:
        matches = [] if labels is None else _matches(context, owner, submission, labels)
        return Preview(labels, matches, plan_submission(context, owner, submission))
    except Problem as problem:
        field = "label_map" if "unknown_labels" in problem.members else field_of(problem)
        return Preview(labels, matches, problem=for_form(problem).detail, field=field)


def _matches(context: Context, owner: str, submission: Submission, labels: Mapping[str, int]) -> list[Match]:
    spec = submission.spec
    try:
        chosen = plan(spec, context.profile, models.all_models(context, owner)).models
    except InvalidInput:  # the plan says it beside its field
        return []
    named = {spec.label_map.get(label, label) for label in labels if label}
    return [Match(model.name, list(model.classes), sorted(named - set(model.classes))) for model in chosen]
