"""The home page: the owner's jobs, and a form for a new job that works without scripts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from gateway.api.dependencies import Cursor, Gateway, Owner
from gateway.api.forms import MANY_IMAGES, MAX_FILES, MAX_MANIFEST_BYTES, files_of, parse, part_of, read_form, validate
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.intake.masks import CITYSCAPES, FOLDERS
from gateway.intake.sources import NamedFile
from gateway.jobs import jobs
from gateway.jobs.choices import methods_listing
from gateway.jobs.submit import Submission, submit
from gateway.models_under_test import models
from gateway.suites import suites
from gateway.web.form_fields import ALL_THE_SAME, NO_LABELS, field_of, for_form
from gateway.web.rendering import render
from shared.characters import visible
from shared.media.manifests import COLUMNS, FILE_COLUMNS, LABEL_COLUMNS
from shared.media.testsets import IMAGE_SUFFIXES, JUNK, MANIFEST_NAMES, TABLE_SUFFIXES
from shared.problems import InvalidInput, Malformed, Problem, TooLarge
from shared.schemas.jobs import JobSpec
from shared.schemas.masks import MaskSpec

FIELDS = (
    "task", "images", "outside_domain", "manifest", "ground_truth", "label_map", "masks", "classes", "methods",
    "values", "shifts", "protected_characteristics", "models",
)  # fmt: skip
MAX_CHOICES = 200  # ticked boxes and other fields
MAX_FIELD_BYTES = 64 * 1024  # of a text field, and of the file of classes
JOBS_PER_PAGE = 20
# What a file is by its name, for scripts that sort dropped files.
RULES = {
    "images": sorted(IMAGE_SUFFIXES),
    "junk": sorted(JUNK),
    "manifests": MANIFEST_NAMES,
    "tables": TABLE_SUFFIXES,
    "columns": COLUMNS,
    "fileColumns": FILE_COLUMNS,
    "labelColumns": LABEL_COLUMNS,
    "masks": [FOLDERS["mask"], *CITYSCAPES["mask"]],
}
SUITES, RUNS_OF_A_SUITE = 10, 5  # on the first page
_ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}  # in the names of files that browsers send

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class JobForm:
    """The form's text fields and ticked boxes.

    `values`: FACTOR=VALUE on each line; `shifts`: a phrase on each line; `classes`: JSON of a `MaskSpec`; `label_map`:
    "label = class" on each line; `labelled`: whether manifest and folders are labels; `outside_domain`: whether to take
    images of any kind; `people`: whether edits may change protected characteristics of people.
    """

    task: str = ""
    methods: tuple[str, ...] = ()
    values: str = ""
    shifts: str = ""
    models: tuple[str, ...] = ()
    classes: str = ""
    label_map: str = ""
    labelled: bool = True
    outside_domain: bool = False
    people: bool = False

    def spec(self) -> JobSpec:
        """The job's spec. Raises InvalidInput and Malformed."""
        phrases = [line.strip() for line in self.shifts.splitlines() if line.strip()]
        if not self.methods:
            raise InvalidInput("no method is chosen; tick at least one")
        if phrases and "shifts" not in self.methods:
            raise InvalidInput("your own changes need the method shifts; tick it, or clear the changes")
        parameters = {"shifts": {"shifts": phrases}} if phrases else {}
        fields = {
            "task_description": self.task,
            "methods": [{"name": name, "parameters": parameters.get(name, {})} for name in self.methods],
            "values": [line.strip() for line in self.values.splitlines() if line.strip()],
            "models": self.models or None,
            "label_map": self._labels(),
            "ground_truth": "auto" if self.labelled else "none",
            "outside_domain": self.outside_domain,
            "protected_characteristics": "allow" if self.people else "refuse",
        }
        spec = validate(JobSpec, fields, "the form")
        if not self.classes:
            return spec
        if not self.labelled:
            raise InvalidInput(
                f"the images have no labels, but masks are labels; untick “{NO_LABELS}”, or remove the masks"
            )
        masks = parse(MaskSpec, self.classes.encode(), "the meaning of the masks")
        return spec.model_copy(update={"masks": masks})

    def _labels(self) -> dict[str, str]:
        lines = [line for line in self.label_map.splitlines() if line.strip()]
        parts = [tuple(part.strip() for part in line.partition("=")) for line in lines]
        if wrong := [line for line, (label, _, name) in zip(lines, parts, strict=True) if not label or not name]:
            raise InvalidInput(
                f"label_map: {wrong[0].strip()[:80]!r} is not `label = class`; write one pair on each line"
            )
        return {label: name for label, _, name in parts}


@router.get("/")
def home(
    gateway: Gateway, owner: Owner, cursor: Cursor = None, model: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """The owner's jobs, and the form with the profile's default methods and one model ticked.

    The model is `model`, or else the one that the owner uploaded last; without uploads the profile's are tested.
    """
    form = JobForm(methods=tuple(gateway.profile.defaults.methods), models=(model,) if model else ())
    if not model:
        with reading(gateway.sessions) as session:
            newest = max(models.uploads_of(session, owner), key=lambda row: row.created_at, default=None)
        form = form if newest is None else replace(form, models=(newest.name,))
    return _page(gateway, owner, form, cursor=cursor)


@router.post("/")
async def start_job(request: Request, gateway: Gateway, owner: Owner) -> Response:
    """Start the form's job and redirect to its page. A browser gets a refusal on the form, with its input kept."""
    filled = JobForm(methods=tuple(gateway.profile.defaults.methods))
    try:
        async with read_form(request, FIELDS, MAX_FILES, MAX_FIELD_BYTES, MANY_IMAGES, MAX_CHOICES) as form:
            filled = job_form(form)
            filled = await with_mask_file(filled, form)
            job = await run_in_threadpool(submit, gateway, owner, await submission_of(form, filled))
    except Problem as problem:
        for_form(problem)
        if "text/html" not in request.headers.get("accept", ""):  # a script, which displays the problem itself
            problem.members["field"] = field_of(problem)
            raise
        return await run_in_threadpool(_page, gateway, owner, filled, problem)
    return RedirectResponse(f"/jobs/{job.id}/view", 303)


def _page(
    gateway: Context, owner: str, form: JobForm, problem: Problem | None = None, cursor: str | None = None
) -> HTMLResponse:
    with reading(gateway.sessions) as session:
        page = jobs.listing(session, owner, cursor, JOBS_PER_PAGE)
        uploads = models.uploads_of(session, owner)
        newest_suites = suites.newest_runs(session, owner, SUITES, RUNS_OF_A_SUITE) if cursor is None else []
    evaluator = gateway.profile.evaluator
    descriptions = {name: model.description for name, model in evaluator.models_under_test.items()}
    descriptions |= {name: model.description for name, model in evaluator.endpoints.items()}
    descriptions |= {model.name: model.description for model in uploads if model.name not in descriptions}
    return render(
        "home.html",
        200 if problem is None else problem.status,
        page=page,
        first=cursor is None,
        suites=newest_suites,
        profile=gateway.profile,
        methods=methods_listing(gateway.profile).methods,
        models=descriptions,
        filled=form,
        rules=RULES,
        no_labels=NO_LABELS,
        all_the_same=ALL_THE_SAME,
        problem=problem.detail if problem else "",
        field=field_of(problem) if problem else "",
    )


def job_form(form: FormData) -> JobForm:
    """The text fields and ticked boxes as they were filled in."""
    texts = {name: [value for value in form.getlist(name) if isinstance(value, str)] for name in FIELDS}
    return JobForm(
        task=" ".join(texts["task"]),
        methods=tuple(texts["methods"]),
        values="\n".join(texts["values"]),
        shifts="\n".join(texts["shifts"]),
        models=tuple(texts["models"]),
        classes="\n".join(texts["classes"]).strip(),
        label_map="\n".join(texts["label_map"]).strip(),
        labelled="none" not in texts["ground_truth"],
        outside_domain="true" in texts["outside_domain"],
        people="allow" in texts["protected_characteristics"],
    )


async def with_mask_file(filled: JobForm, form: FormData) -> JobForm:
    """The form with the meaning of the masks from an uploaded file. Raises InvalidInput, Malformed and TooLarge."""
    files = [file for file in form.getlist("classes") if isinstance(file, UploadFile) and file.filename]
    if not files:
        return filled
    if filled.classes or len(files) > 1:
        raise InvalidInput("the meaning of the masks is given twice; give it either as text or as one file")
    data = await files[0].read(MAX_FIELD_BYTES + 1)
    if len(data) > MAX_FIELD_BYTES:
        raise TooLarge(f"the file with the meaning of the masks is larger than {MAX_FIELD_BYTES:,} bytes")
    try:
        return replace(filled, classes=data.decode().strip())
    except UnicodeDecodeError as error:
        raise Malformed("the file with the meaning of the masks is not text; send JSON") from error


async def submission_of(form: FormData, filled: JobForm) -> Submission:
    """The job that the form describes."""
    masks, files = _files(form, "masks"), _files(form, "images")
    if masks and not filled.classes:
        raise InvalidInput("the masks need a description of their values; add it below them, or remove the masks")
    manifest = await part_of(form, "manifest", MAX_MANIFEST_BYTES) or None
    return Submission(spec=filled.spec(), files=files, masks=masks, manifest=manifest)


def _files(form: FormData, name: str) -> list[NamedFile]:
    """The files of a field. A browser that selected none sends one without a name."""
    return [replace(file, name=browser_name(file.name)) for file in files_of(form, name) if file.name]


def browser_name(name: str) -> str:
    """The name of a file whose quotes and line breaks a browser escaped, with line breaks replaced by U+FFFD.

    A `%` is not escaped, so a name with %22 of its own cannot be told apart
    (https://html.spec.whatwg.org/#multipart-form-data).
    """
    for escape, character in _ESCAPES.items():
        name = name.replace(escape, character)
    return visible(name)
