"""Parses `POST /jobs`, a form with images or JSON that names uploaded images, into a `Submission`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from gateway.intake.sources import NamedFile
from gateway.jobs.submit import Submission
from shared.characters import is_storable
from shared.problems import InvalidInput, Malformed, Overloaded, TooLarge, validation_sentence
from shared.schemas.base import Contract, JsonObject
from shared.schemas.jobs import JobRequest, JobSpec

MAX_FILES = 1_000  # of one form; larger sets come as an archive or by digest
MAX_SPEC_BYTES = 4 * 1024**2
MAX_MANIFEST_BYTES = 32 * 1024**2
PARTS = ("images", "masks", "task_description", "task", "spec", "manifest")
MANY_IMAGES = (
    f"Send more than {MAX_FILES:,} images as a zip or tar, or upload them one by one with PUT /images/{{digest}}"
)

Message = TypeVar("Message", bound=Contract)

_UNSTORABLE = "{name} contains a character that cannot be stored (U+0000, or half of a surrogate pair); remove it"

REQUEST_BODY: JsonObject = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "anyOf": [{"required": ["task_description"]}, {"required": ["task"]}, {"required": ["spec"]}],
                    "additionalProperties": False,
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                            "description": "image files, or one zip, tar or tar.gz of them",
                        },
                        "masks": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "segmentation masks: PNG files with the same stems as the images, or the "
                            "folder `masks` of an archive. `masks` of the spec gives their meaning",
                        },
                        "task_description": {
                            "type": "string",
                            "description": "shorthand for a `spec` with only the task description",
                        },
                        "task": {"type": "string", "description": "short for `task_description`"},
                        "spec": {"$ref": "#/components/schemas/JobSpec"},
                        "manifest": {
                            "type": "string",
                            "format": "binary",
                            "description": "ground truth: CSV (`file,label` or `file,mask`) or JSON Lines",
                        },
                    },
                },
                "encoding": {"spec": {"contentType": "application/json"}},
            },
            "application/json": {
                "schema": {"$ref": "#/components/schemas/JobRequest"},
                "examples": {
                    "uploaded": {
                        "summary": "two images that PUT /images/{digest} uploaded before",
                        "value": {
                            "task_description": "classify the vehicle",
                            "images": [
                                {"digest": "5c" * 32, "label": "bus", "name": "bus/1.png"},
                                {"digest": "9f" * 32, "label": "car", "name": "car/1.png"},
                            ],
                        },
                    }
                },
            },
        },
    }
}


class _Parser(MultiPartParser):
    """Starlette's parser, with less of each file in memory: the default is a megabyte, and a form has 1,000 files."""

    spool_max_size = 64 * 1024


@asynccontextmanager
async def read_submission(request: Request, idempotency_key: str | None) -> AsyncIterator[Submission]:
    """The submission; its files are open until the context ends."""
    kind = content_type(request)
    if kind == "application/json":
        job = await run_in_threadpool(parse, JobRequest, await request.body(), "the request")
        yield Submission(job.spec, uploaded=job.images, idempotency_key=idempotency_key)
    elif kind == "multipart/form-data":
        async with read_form(request, PARTS, MAX_FILES, MAX_SPEC_BYTES, MANY_IMAGES) as form:
            yield await _from_form(form, idempotency_key)
    else:
        raise HTTPException(415, f"Content-Type is {kind!r}; send multipart/form-data or application/json")


@asynccontextmanager
async def read_form(
    request: Request,
    parts: Sequence[str],
    max_files: int,
    max_part_bytes: int,
    advice: str = "Send an archive",
    max_fields: int | None = None,
) -> AsyncIterator[FormData]:
    """A form with these parts; its files are open until the context ends.

    `advice` ends the message about a form that is too large. `max_fields` limits the parts that are not files (default:
    each part once). Raises HTTPException (415) for another content type, Malformed, InvalidInput and Overloaded.
    """
    refuse_other_types(request, "multipart/form-data")
    _refuse_other_charsets(request.headers["content-type"])
    parser = _Parser(
        request.headers,
        request.stream(),
        max_files=max_files,
        max_fields=len(parts) if max_fields is None else max_fields,
        max_part_size=max_part_bytes,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Malformed(f"the form cannot be read: {error.message} {advice}") from error
    except OSError as error:  # no file handle or no disk space for the next part
        raise Overloaded(f"the form cannot be stored now ({error.strerror}). {advice}", retry_after=10) from error
    try:
        if unknown := sorted(set(form) - set(parts)):
            raise InvalidInput(f"unknown part {', '.join(unknown)[:100]}; allowed are {', '.join(parts)}")
        yield form
    finally:
        await form.close()


def content_type(request: Request) -> str:
    """The declared content type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def refuse_other_types(request: Request, accepted: str) -> None:
    """Raise HTTPException (415) for a body of another declared type."""
    if (kind := content_type(request)) != accepted:
        raise HTTPException(415, f"Content-Type is {kind!r}; send {accepted}")


def files_of(form: FormData, name: str) -> list[NamedFile]:
    """The files of the parts of this name. Raises InvalidInput if a part is not a file."""
    parts = form.getlist(name)
    if any(isinstance(file, str) for file in parts):
        raise InvalidInput(f"`{name}` must be files; with curl, write -F {name}=@a.png with the @")
    return [NamedFile(file.filename or "", file.file) for file in parts if isinstance(file, UploadFile)]


async def _from_form(form: FormData, idempotency_key: str | None) -> Submission:
    return Submission(
        spec=_spec(await part_of(form, "spec", MAX_SPEC_BYTES), await _task_description(form)),
        files=files_of(form, "images"),
        masks=files_of(form, "masks"),
        manifest=await part_of(form, "manifest", MAX_MANIFEST_BYTES),
        idempotency_key=idempotency_key,
    )


async def _task_description(form: FormData) -> bytes | None:
    """The part `task_description`, also called `task`. Raises InvalidInput if both are there and differ."""
    parts = [await part_of(form, name, MAX_SPEC_BYTES) for name in ("task_description", "task")]
    texts = {part for part in parts if part is not None}
    if len(texts) > 1:
        raise InvalidInput("the parts `task_description` and `task` differ; send one of them")
    return texts.pop() if texts else None


def _spec(spec: bytes | None, task_description: bytes | None) -> JobSpec:
    if task_description is None:
        if spec is None:
            raise InvalidInput(
                "say what your model does: -F task='classify the vehicle', or a `spec` part that says it"
            )
        return parse(JobSpec, spec, "spec")
    try:
        sentence = task_description.decode()
        fields = {} if spec is None else from_json(spec)
    except ValueError as error:
        raise Malformed(f"spec is not JSON, or task is not UTF-8: {error}") from error
    if not isinstance(fields, dict):
        raise Malformed("spec is not a JSON object")
    name = "task" if "task" in fields else "task_description"
    if fields.setdefault(name, sentence) != sentence:
        raise InvalidInput("`task` and the task description in `spec` differ; send one of them")
    return validate(JobSpec, fields, "spec")


def _refuse_other_charsets(content_type: str) -> None:
    """Accept UTF-8 only: the parser decodes names with any codec of Python, and some raise unexpected errors."""
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.lower() not in (b"utf-8", b"utf8", b"us-ascii"):
        raise Malformed(f"the form's charset is {charset[:40].decode('latin-1')!r}; send UTF-8")


async def part_of(form: FormData, name: str, max_bytes: int) -> bytes | None:
    """The part of this name, or None. Raises InvalidInput for several, TooLarge for more than `max_bytes`."""
    parts = form.getlist(name)
    if len(parts) > 1:
        raise InvalidInput(f"there is more than one part {name}; send one")
    if not parts:
        return None
    data = parts[0].encode() if isinstance(parts[0], str) else await parts[0].read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TooLarge(f"the part {name} is larger than {max_bytes:,} bytes")
    return data


def parse(message: type[Message], data: bytes, name: str) -> Message:
    """A contract from the JSON of a part. Raises Malformed and InvalidInput."""
    if b"\\u0000" in data:
        raise InvalidInput(_UNSTORABLE.format(name=name))
    try:
        return message.model_validate_json(data)
    except ValidationError as error:
        raise _refusal(error, name) from error


def validate(message: type[Message], fields: Mapping[str, object], name: str) -> Message:
    """A contract from the fields of a form. Raises InvalidInput."""
    if not is_storable(fields):
        raise InvalidInput(_UNSTORABLE.format(name=name))
    try:
        return message.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error, name) from error


def _refusal(error: ValidationError, name: str) -> Malformed | InvalidInput:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    unreadable = any(item["type"] == "json_invalid" for item in errors)
    return (Malformed if unreadable else InvalidInput)(f"{name}: {validation_sentence(errors)}")
