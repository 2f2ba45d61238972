"""`/models`: models under test, the installation's and one's own; and more of them for a job that is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile

from gateway.api.dependencies import Gateway, JobId, Owner, problems
from gateway.api.forms import parse, part_of, read_form, validate
from gateway.intake.sources import NamedFile
from gateway.jobs import more_models
from gateway.models_under_test import models
from shared.problems import InvalidInput
from shared.schemas.base import JsonObject
from shared.schemas.jobs import JobDetail, ModelsListing, ModelView
from shared.schemas.models import NAME_PATTERN, AddedModels, ModelSpec

router = APIRouter(tags=["models"])
ModelId = Annotated[str, Path(max_length=64, description="`id` of an uploaded model")]
PARTS = ("model", "name", "spec")
MAX_FILES = 200  # shards and their descriptions
MAX_SPEC_BYTES = 1024**2

_SPEC: JsonObject = {"$ref": "#/components/schemas/ModelSpec"}
_BODY: JsonObject = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["model"],
                    "anyOf": [{"required": ["name"]}, {"required": ["spec"]}],
                    "additionalProperties": False,
                    "properties": {
                        "model": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                            "description": "an .onnx file, the files of a model in Hub layout, or a zip or tar of them",
                        },
                        "name": {
                            "type": "string",
                            "pattern": NAME_PATTERN,
                            "description": "shorthand for a `spec` with only the name",
                        },
                        "spec": _SPEC,
                    },
                },
                "encoding": {"spec": {"contentType": "application/json"}},
            }
        },
    }
}


@router.get("/models", responses=problems(s503="the evaluator is not ready yet"))
def list_models(gateway: Gateway, owner: Owner) -> ModelsListing:
    """The models under test with their classes: this installation's, and those that you uploaded."""
    return models.listing(gateway, owner)


@router.post(
    "/models",
    status_code=201,
    response_model=ModelView,
    openapi_extra=_BODY,
    responses={
        200: {"model": ModelView, "description": "you already have this model under this name"},
        201: {"headers": {"Location": {"description": "the model's path", "schema": {"type": "string"}}}},
        **problems(
            s400="a file or the form cannot be read",
            s409="the name is taken, or you have too many models",
            s413="too many bytes",
            s415="not a form",
            s502="the object store failed",
            s503="the evaluator is not ready yet",
            s504="the evaluator did not load the model in time; send it again",
        ),
    },
)
async def add_model(request: Request, response: Response, gateway: Gateway, owner: Owner) -> ModelView:
    """Upload a model under test. It is loaded and run once; an unusable model is refused with the reason."""
    async with _open_upload(request) as (spec, files):
        view, new = await run_in_threadpool(models.add, gateway, owner, spec, files)
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"/models/{view.id}"
    return view


@router.get("/models/{model}", responses=problems(s404="no such model", s503="the evaluator is not ready yet"))
def show_model(model: ModelId, gateway: Gateway, owner: Owner) -> ModelView:
    """A model that you uploaded."""
    return models.show(gateway, owner, model)


@router.delete("/models/{model}", status_code=204, responses=problems(s404="no such model", s409="a job needs it"))
def delete_model(model: ModelId, gateway: Gateway, owner: Owner) -> None:
    """Delete a model that you uploaded. The results of jobs that tested it stay."""
    with gateway.sessions.begin() as session:
        key = models.remove(session, owner, model)
    gateway.store.delete(key)


@router.post(
    "/jobs/{job}/models",
    status_code=202,
    responses=problems(s404="no such job", s409="the job is running", s503="the evaluator is not ready yet"),
)
def add_models_to_job(job: JobId, added: AddedModels, gateway: Gateway, owner: Owner) -> JobDetail:
    """Test more models on the images of a finished job. Nothing is rendered again."""
    return more_models.add_to_job(gateway, owner, job, added.models)


@asynccontextmanager
async def _open_upload(request: Request) -> AsyncIterator[tuple[ModelSpec, list[NamedFile]]]:
    """The spec and the files, which are open until the context ends."""
    async with read_form(request, PARTS, MAX_FILES, MAX_SPEC_BYTES) as form:
        spec = await _spec(form)
        files = form.getlist("model")
        if any(isinstance(file, str) for file in files):
            raise InvalidInput("`model` must be files; with curl, write -F model=@model.onnx with the @")
        yield spec, [NamedFile(file.filename or "", file.file) for file in files if isinstance(file, UploadFile)]


async def _spec(form: FormData) -> ModelSpec:
    spec, name = await part_of(form, "spec", MAX_SPEC_BYTES), await part_of(form, "name", MAX_SPEC_BYTES)
    if (spec is None) == (name is None):
        raise InvalidInput("name the model with either -F name=my-model or a `spec` part")
    if spec is not None:
        return parse(ModelSpec, spec, "spec")
    return validate(ModelSpec, {"name": (name or b"").decode("utf-8", "replace")}, "name")
