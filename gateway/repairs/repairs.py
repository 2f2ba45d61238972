"""Repairs as their owners see them: begin, find, list, cancel, delete. `gateway.repairs.dispatch` does the work.

rows of a finished job ──► order (images split without leaks) ──► object store ──► row, running, for a trainer
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gateway.context import Context
from gateway.database.pagination import SortKey, page_of
from gateway.database.sessions import reading
from gateway.database.table_base import utc_now
from gateway.database.tables import ModelUnderTest, Repair
from gateway.jobs import jobs
from gateway.jobs.model_choice import models_by_name, refuse_unknown_truths
from gateway.kinds import KINDS
from gateway.models_under_test.models import all_models
from gateway.repairs import orders
from shared.media.storage import ObjectStore, model_key, repair_key
from shared.problems import Conflict, DependencyFailed, InvalidInput, NotFound
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.repairs import (
    TRAINED,
    RepairOrder,
    RepairProgress,
    RepairRequest,
    RepairsPage,
    RepairView,
    StoredModel,
)


def begin(context: Context, owner: str, job_id: str, request: RepairRequest) -> RepairView:
    """Start the training of a model on a job's counterfactuals.

    Raises NotFound, Conflict while the job runs, and InvalidInput for a model that cannot be trained or does not fit,
    or for too few images to train on or evaluate with.
    """
    with reading(context.sessions) as session:
        job = jobs.find(session, owner, job_id)
        if job.state == "running":
            raise Conflict("the job is running; repair a model when it is done, or cancel it first")
        originals, accepted = orders.load(session, job_id)
    (model,) = models_by_name([request.model], all_models(context, owner))
    if model.kind != job.kind:
        raise InvalidInput(
            f"{model.name!r} is for {model.kind}, and the job for {job.kind}; choose a model for {job.kind}"
        )
    if KINDS[job.kind].no_repair:
        raise InvalidInput(KINDS[job.kind].no_repair)
    upload = _trainable(context, owner, model)
    classes = job.classes if KINDS[job.kind].localised else []
    labels = {*classes, *(original.label for original in originals if original.mask is None)}
    refuse_unknown_truths(labels, [model], "Repair a model that the job's classes fit")
    repair_id = uuid.uuid4().hex
    order = orders.order_of(repair_id, job_id, request, model.licence, upload, originals, accepted, classes, job.kind)
    context.store.put(repair_key(repair_id, "order.json"), order.model_dump_json().encode())
    progress = RepairProgress(total=len(TRAINED) * order.parameters.steps)
    row = Repair(id=repair_id, owner_id=owner, job_id=job_id, model=request.model, request=request, progress=progress)
    with context.sessions.begin() as session:
        jobs.find(session, owner, job_id)  # it may have been deleted meanwhile
        session.add(row)
    with reading(context.sessions) as session:
        return show(session, owner, repair_id)


def _trainable(context: Context, owner: str, model: ModelUnderTestInfo) -> StoredModel | None:
    """The package of an uploaded model; None for an operator's model. Raises InvalidInput if it cannot be trained."""
    if not model.uploaded:
        if model.name in context.profile.evaluator.endpoints:
            raise InvalidInput(
                f"{model.name!r} answers over HTTP, so its weights cannot be trained from here; upload the model "
                "in Hub layout by POST /models and repair that"
            )
        return None
    with reading(context.sessions) as session:
        row = session.scalar(
            select(ModelUnderTest).where(ModelUnderTest.owner_id == owner, ModelUnderTest.name == model.name)
        )
        if row is None:
            raise NotFound(f"your model {model.name!r} no longer exists")
        if row.format == "onnx":
            raise InvalidInput(
                f"{model.name!r} is an ONNX model, which cannot be trained; upload the model that it was exported from"
            )
        return StoredModel(key=model_key(row.digest, row.id), digest=row.digest)


def find(session: Session, owner: str, repair_id: str) -> Repair:
    """The owner's repair. Raises NotFound, also for another owner's."""
    row = session.scalar(select(Repair).where(Repair.id == repair_id, Repair.owner_id == owner))
    if row is None:
        raise NotFound(f"there is no repair {repair_id!r}; GET /repairs lists yours")
    return row


def show(session: Session, owner: str, repair_id: str) -> RepairView:
    """One repair. Raises NotFound."""
    return _view(find(session, owner, repair_id))


def listing(session: Session, owner: str, job_id: str | None, cursor: str | None, limit: int) -> RepairsPage:
    """A page of the owner's repairs, or of one job's, newest first."""
    query = select(Repair).where(Repair.owner_id == owner)
    if job_id is not None:
        query = query.where(Repair.job_id == job_id)
    order: SortKey = {Repair.created_at: datetime, Repair.id: str}
    rows, following = page_of(session, query, order, cursor, limit, descending=True)
    return RepairsPage(repairs=[_view(row) for row in rows], next=following)


def cancel(session: Session, owner: str, repair_id: str) -> RepairView:
    """Cancel a repair, unless it has ended. Its trainer stops when its lease is gone. Raises NotFound."""
    row = find(session, owner, repair_id)
    session.execute(
        update(Repair)
        .where(Repair.id == row.id, Repair.state == "running")
        .values(state="cancelled", token=None, finished_at=utc_now())
    )
    session.refresh(row)
    return _view(row)


def remove(session: Session, owner: str, repair_id: str) -> None:
    """Delete a repair, running or not. Raises NotFound."""
    session.delete(find(session, owner, repair_id))


def ids_of(session: Session, job_ids: Sequence[str]) -> list[str]:
    """The repairs of these jobs. A caller that deletes the jobs deletes the repairs' objects after the commit."""
    return list(session.scalars(select(Repair.id).where(Repair.job_id.in_(job_ids))))


def forget_objects(store: ObjectStore, repair_ids: Sequence[str]) -> None:
    """Delete the objects of repairs, all leases (`grant.json`) first, so that their trainers stop.

    Raises DependencyFailed after trying every lease; housekeeping deletes what is left.
    """
    failure: DependencyFailed | None = None
    for repair_id in repair_ids:
        try:
            store.delete(repair_key(repair_id, "grant.json"))
        except DependencyFailed as error:
            failure = error
    if failure is not None:
        raise failure
    for repair_id in repair_ids:
        for item in store.iterate(repair_key(repair_id) + "/"):
            store.delete(item.key)


def model_file(session: Session, owner: str, repair_id: str, arm: str) -> str:
    """The key of an arm's model. Raises NotFound, and Conflict while there is none."""
    row = find(session, owner, repair_id)
    if row.state != "done":
        raise Conflict(f"the repair is {row.state}; its model is available when it is done")
    return repair_key(row.id, arm, "model.tar")


def order(store: ObjectStore, repair_id: str) -> RepairOrder:
    """The order of a repair. Raises `shared.media.storage.ObjectMissing`."""
    return RepairOrder.model_validate_json(store.get(repair_key(repair_id, "order.json")))


def _view(row: Repair) -> RepairView:
    return RepairView(
        id=row.id,
        job=row.job_id,
        model=row.model,
        state=row.state,
        failure=row.failure,
        request=row.request,
        progress=row.progress,
        result=row.result,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
