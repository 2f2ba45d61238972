"""The first page: the owner's jobs, and the form for a new one, which needs no scripts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from gateway.api.dependencies import Cursor, Gateway, Owner
from gateway.api.forms import MANY_IMAGES, MAX_FILES, MAX_MANIFEST_BYTES, files_of, parse, part_of, read_form, validated
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.intake.sources import NamedFile
from gateway.jobs import jobs
from gateway.jobs.choices import methods_listing
from gateway.jobs.submit import Submission, submit
from gateway.models_under_test import models
from gateway.web.rendering import render
from shared.problems import InvalidInput, Malformed, Problem, TooLarge
from shared.schemas.jobs import JobSpec
from shared.schemas.masks import MaskSpec

FIELDS = ("task", "images", "manifest", "masks", "classes", "methods", "shifts", "models")
MAX_CHOICES = 200  # boxes ticked, and the other fields
MAX_TYPED_BYTES = 64 * 1024  # of a field, and of a file of classes
JOBS_PER_PAGE = 20

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class Typed:
    """What the form's fields hold, without files. `shifts`: a phrase on each line; `classes`: JSON of a `MaskSpec`."""

    task: str = ""
    methods: tuple[str, ...] = ()
    shifts: str = ""
    models: tuple[str, ...] = ()
    classes: str = ""

    def spec(self) -> JobSpec:
        """The job's spec. Raises InvalidInput and Malformed."""
        phrases = [line.strip() for line in self.shifts.splitlines() if line.strip()]
        if not self.methods:
            raise InvalidInput("no method is chosen; tick at least one")
        if phrases and "shifts" not in self.methods:
            raise InvalidInput("only the method shifts makes changes of your own; tick it, or clear them")
        given = {"shifts": {"shifts": phrases}} if phrases else {}
        fields = {
            "task_description": self.task,
            "methods": [{"name": name, "parameters": given.get(name, {})} for name in self.methods],
            "models": self.models or None,
        }
        spec = validated(JobSpec, fields, "the form")
        if not self.classes:
            return spec
        masks = parse(MaskSpec, self.classes.encode(), "what the masks mean")
        return spec.model_copy(update={"masks": masks})


@router.get("/")
def home(gateway: Gateway, owner: Owner, cursor: Cursor = None) -> HTMLResponse:
    """The owner's jobs, and the form with the profile's methods ticked."""
    return _page(gateway, owner, Typed(methods=tuple(gateway.profile.defaults.methods)), cursor=cursor)


@router.post("/")
async def start_job(request: Request, gateway: Gateway, owner: Owner) -> Response:
    """Start the form's job and lead to its page. A browser gets a refusal on the form, as it was filled in."""
    typed = Typed(methods=tuple(gateway.profile.defaults.methods))
    try:
        async with read_form(request, FIELDS, MAX_FILES, MAX_TYPED_BYTES, MANY_IMAGES, MAX_CHOICES) as form:
            typed = _typed(form)
            typed = await _with_file(typed, form)
            job = await run_in_threadpool(submit, gateway, owner, await _submission(form, typed))
    except Problem as problem:
        if "text/html" not in request.headers.get("accept", ""):  # a script, which shows the sentence by itself
            raise
        return await run_in_threadpool(_page, gateway, owner, typed, problem)
    return RedirectResponse(f"/jobs/{job.id}/view", 303)


def _page(
    gateway: Context, owner: str, typed: Typed, problem: Problem | None = None, cursor: str | None = None
) -> HTMLResponse:
    with reading(gateway.sessions) as session:
        page = jobs.listing(session, owner, cursor, JOBS_PER_PAGE)
        uploads = models.uploads_of(session, owner)
    evaluator = gateway.profile.evaluator
    offered = {name: model.description for name, model in evaluator.models_under_test.items()}
    offered |= {name: model.description for name, model in evaluator.endpoints.items()}
    offered |= {model.name: model.description for model in uploads if model.name not in offered}
    return render(
        "home.html",
        200 if problem is None else problem.status,
        page=page,
        first=cursor is None,
        profile=gateway.profile,
        methods=methods_listing(gateway.profile).methods,
        models=offered,
        typed=typed,
        problem=problem.detail if problem else "",
    )


def _typed(form: FormData) -> Typed:
    texts = {name: [value for value in form.getlist(name) if isinstance(value, str)] for name in FIELDS}
    return Typed(
        task=" ".join(texts["task"]),
        methods=tuple(texts["methods"]),
        shifts="\n".join(texts["shifts"]),
        models=tuple(texts["models"]),
        classes="\n".join(texts["classes"]).strip(),
    )


async def _with_file(typed: Typed, form: FormData) -> Typed:
    """With what a file says of the masks, as if it had been typed. Raises InvalidInput, Malformed and TooLarge."""
    files = [file for file in form.getlist("classes") if isinstance(file, UploadFile) and file.filename]
    if not files:
        return typed
    if typed.classes or len(files) > 1:
        raise InvalidInput("the meaning of the masks was given twice; give it as text or as a file")
    data = await files[0].read(MAX_TYPED_BYTES + 1)
    if len(data) > MAX_TYPED_BYTES:
        raise TooLarge(f"the file with the meaning of the masks is larger than {MAX_TYPED_BYTES:,} bytes")
    try:
        return replace(typed, classes=data.decode().strip())
    except UnicodeDecodeError as error:
        raise Malformed("the file with the meaning of the masks is not text; send JSON") from error


async def _submission(form: FormData, typed: Typed) -> Submission:
    masks = _chosen(form, "masks")
    if masks and not typed.classes:
        raise InvalidInput("the masks need a description of their values; add it below them, or remove the masks")
    return Submission(
        spec=typed.spec(),
        files=_chosen(form, "images"),
        masks=masks,
        manifest=await part_of(form, "manifest", MAX_MANIFEST_BYTES) or None,
    )


def _chosen(form: FormData, name: str) -> list[NamedFile]:
    """The files of a field; a browser sends one without name or content where none was chosen."""
    return [file for file in files_of(form, name) if file.name]
