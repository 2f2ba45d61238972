"""Uploaded models under test: add, list, delete.

files ──pack──► object store ──examined by the evaluator──► row      (a refused model is deleted from the store)
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.context import Context
from gateway.database.columns import ModelColumns
from gateway.database.sessions import insert_missing, reading
from gateway.database.tables import Job, ModelUnderTest
from gateway.intake.sources import NamedFile
from gateway.models_under_test.packages import Package, pack
from shared.media.storage import model_key
from shared.problems import Conflict, NotFound, Overloaded
from shared.schemas.evaluation import ExamineReply, ExamineRequest, ModelsReply, ModelUnderTestInfo, UploadedModel
from shared.schemas.jobs import ModelsListing, ModelView
from shared.schemas.models import ModelSpec

LINK_SECONDS = 600
RETRY_SECONDS = 15.0
# A model is unpacked and packed again on this machine's disk, so further requests get 429.
UPLOADS_AT_ONCE = 4
_UPLOADING: set[str] = set()  # owners
_CHANGING = threading.Lock()


def add(context: Context, owner: str, spec: ModelSpec, files: Sequence[NamedFile]) -> tuple[ModelView, bool]:
    """Store a model under test. The second value is False if the owner has the same model under this name already.

    A quarantined model that the owner has is examined again, which lifts the quarantine if it passes.

    Raises the errors of the package, InvalidInput if the model cannot be loaded or run, Conflict for a name that is
    taken, and NotReady and similar errors of the evaluator.
    """
    if spec.name in context.profile.evaluator.aliases:
        raise Conflict(f"this installation has a model under test {spec.name!r} already; choose another name")
    with _upload_slot(owner), pack(files, spec, context.settings.max_model_bytes) as package:
        row = _existing(context, owner, spec.name, package)
        if row is None:
            return _store(context, owner, spec, package), True
        if row.digest in _quarantine_reasons(context.services.models()):
            _examine(context, row.digest, model_key(row.digest, row.id))
        return _view(row), False


@contextmanager
def _upload_slot(owner: str) -> Iterator[None]:
    """Allow one upload per owner and a few in all: each takes disk space for minutes while it is examined."""
    with _CHANGING:
        if owner in _UPLOADING or len(_UPLOADING) >= UPLOADS_AT_ONCE:
            busy = "another model of yours is" if owner in _UPLOADING else "other models are"
            raise Overloaded(f"{busy} being uploaded; retry", retry_after=RETRY_SECONDS)
        _UPLOADING.add(owner)
    try:
        yield
    finally:
        with _CHANGING:
            _UPLOADING.discard(owner)


def _existing(context: Context, owner: str, name: str, package: Package) -> ModelUnderTest | None:
    """The model if it was uploaded before. Raises Conflict if another model has the name, or for too many models."""
    limit = context.settings.max_models_per_owner
    with reading(context.sessions) as session:
        row = session.scalar(
            select(ModelUnderTest).where(ModelUnderTest.owner_id == owner, ModelUnderTest.name == name)
        )
        count = session.scalar(select(func.count()).where(ModelUnderTest.owner_id == owner)) or 0
    if row is not None and row.digest != package.digest:
        raise Conflict(f"you have another model named {name!r}; delete it, or choose another name")
    if row is None and count >= limit:
        raise Conflict(f"you have {count} models, and {limit} are kept for each owner; delete one")
    return row


def _store(context: Context, owner: str, spec: ModelSpec, package: Package) -> ModelView:
    model_id = uuid.uuid4().hex
    key = model_key(package.digest, model_id)
    context.store.put_file(key, package.file)
    inserted = False
    try:
        reply = _examine(context, package.digest, key)
        row = _row(model_id, owner, spec, package, reply)
        with context.sessions.begin() as session:
            insert_missing(session, ModelUnderTest, [row])
            inserted = session.get(ModelUnderTest, model_id) is not None
        if not inserted:
            raise Conflict(f"you have another model named {spec.name!r}; delete it, or choose another name")
    finally:
        if not inserted:
            context.store.delete(key)
    with reading(context.sessions) as session:
        return _view(session.get_one(ModelUnderTest, model_id))


def _examine(context: Context, digest: str, key: str) -> ExamineReply:
    upload = UploadedModel(digest=digest, url=context.store.link(key, LINK_SECONDS))
    return context.services.examine(ExamineRequest(upload=upload, largest_side=context.settings.working_side))


def _row(model_id: str, owner: str, spec: ModelSpec, package: Package, reply: ExamineReply) -> ModelColumns:
    return {
        "id": model_id,
        "owner_id": owner,
        "name": spec.name,
        "digest": package.digest,
        "format": package.format,
        "kind": reply.kind,
        "classes": reply.classes,
        "bytes": package.bytes,
        "licence": spec.licence,
        "description": spec.description,
    }


def _quarantine_reasons(reply: ModelsReply) -> dict[str, str]:
    """Digests of quarantined uploads with their reasons."""
    return {model.digest: model.reason for model in reply.quarantined}


def uploads_of(session: Session, owner: str) -> list[ModelUnderTest]:
    """The owner's uploaded models, by name."""
    query = select(ModelUnderTest).where(ModelUnderTest.owner_id == owner).order_by(ModelUnderTest.name)
    return list(session.scalars(query))


def all_models(context: Context, owner: str) -> list[ModelUnderTestInfo]:
    """The operator's models and the owner's. Raises NotReady while the evaluator is not ready."""
    operators = context.services.models().models
    with reading(context.sessions) as session:
        uploads = [_info(row) for row in uploads_of(session, owner)]
    names = {model.name for model in operators}  # an alias that was added later hides an upload of its name
    return [*operators, *(model for model in uploads if model.name not in names)]


def listing(context: Context, owner: str) -> ModelsListing:
    """All models, with the profile's defaults marked, and quarantined uploads with the reason."""
    defaults = context.profile.defaults.models
    with reading(context.sessions) as session:
        uploads = uploads_of(session, owner)
    reply = context.services.models()
    reasons = _quarantine_reasons(reply)
    operators = [ModelView(**model.model_dump(), default=model.name in defaults) for model in reply.models]
    return ModelsListing(models=[*operators, *(_view(row, reasons.get(row.digest)) for row in uploads)])


def find(session: Session, owner: str, model_id: str) -> ModelUnderTest:
    """The owner's uploaded model. Raises NotFound, also for another owner's."""
    row = session.scalar(select(ModelUnderTest).where(ModelUnderTest.id == model_id, ModelUnderTest.owner_id == owner))
    if row is None:
        raise NotFound(f"you have uploaded no model {model_id!r}; GET /models lists them with their ids")
    return row


def show(context: Context, owner: str, model_id: str) -> ModelView:
    """One uploaded model. Raises NotFound, and NotReady while the evaluator is not ready."""
    with reading(context.sessions) as session:
        row = find(session, owner, model_id)
    return _view(row, _quarantine_reasons(context.services.models()).get(row.digest))


def remove(session: Session, owner: str, model_id: str) -> str:
    """Delete an uploaded model; returns its object's key, to delete after the commit. Results of jobs stay.

    Raises NotFound, and Conflict while a running job needs it.
    """
    row = find(session, owner, model_id)
    running = session.execute(select(Job.id, Job.uploaded_models).where(Job.owner_id == owner, Job.state == "running"))
    if needing := [job_id for job_id, uploads in running if row.digest in uploads.values()]:
        raise Conflict(f"job {needing[0]} is testing this model; wait until it ends, or cancel it")
    session.delete(row)
    return model_key(row.digest, row.id)


def _info(row: ModelUnderTest) -> ModelUnderTestInfo:
    return ModelUnderTestInfo(
        name=row.name,
        kind=row.kind,
        classes=row.classes,
        weights="uploaded",
        revision=row.digest,
        licence=row.licence,
        description=row.description,
        uploaded=True,
    )


def _view(row: ModelUnderTest, quarantine: str | None = None) -> ModelView:
    return ModelView(
        **_info(row).model_dump(),
        default=False,
        quarantine=quarantine,
        id=row.id,
        format=row.format,
        bytes=row.bytes,
        created_at=row.created_at,
    )
