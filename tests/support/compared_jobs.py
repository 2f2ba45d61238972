"""The job `made` with two models and two methods, a copy of it, and jobs that cannot be compared with it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.columns import StoredSpec
from gateway.database.tables import (
    LOCAL_OWNER,
    Counterfactual,
    Image,
    Job,
    JobRound,
    OwnedImage,
    Prediction,
    SourceImage,
)
from gateway.methods import read_method
from shared.media.images import from_array
from shared.media.storage import image_key
from shared.schemas.base import Kind
from shared.schemas.designs import RoundPlan
from shared.schemas.jobs import JobState
from shared.seeds import derive_id
from tests.support.gateway_under_test import Gateway
from tests.support.job_counts import store_counts
from tests.support.suite_site import add_job, predict

Row = TypeVar("Row", Job, SourceImage, Counterfactual, Prediction)
MODELS = ("sound", "weak")
REFUSED = {
    "running": (409, "is running"),
    "streets": (422, "segmentation"),
    "strange": (422, "no source image in common"),
    "relabelled": (422, "different ground truth"),
    "unlabelled": (422, "no ground truth"),
    "adaptive": (422, "is adaptive"),
    "none": (404, "no job"),
}
"""What a reply says of each job that cannot be compared with `made`."""


def add_compared_jobs(gateway: Gateway) -> None:
    """The job `made` of 80 source images, on which `weak` fails on buses at night; `copy`; and those of `REFUSED`.

    Both have the method lance beside dillema: the same edits, on which every model is right.
    """
    add_job(gateway)
    for model in MODELS:
        with gateway.context.sessions.begin() as session:
            session.get_one(Job, "made").models = [model]
        predict(gateway, "made", weak=model == "weak")
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "made").models = list(MODELS)
        _add_second_method(session, session.get_one(Job, "made"))
        session.flush()
        _copy_job(session, "made", "copy")
    _add_refused_jobs(gateway)


def _add_second_method(session: Session, job: Job) -> None:
    job.methods = [*job.methods, read_method("lance", {})]
    for row in session.scalars(select(Counterfactual).where(Counterfactual.job_id == job.id)).all():
        session.add(_copy(row, id=f"lance-{row.id}", method="lance"))
    session.flush()
    edited = select(Prediction).where(Prediction.job_id == job.id, Prediction.counterfactual_id.is_not(None))
    for prediction in session.scalars(edited).all():
        new_id, counterfactual = f"lance-{prediction.id}"[:32], f"lance-{prediction.counterfactual_id}"
        right = {"scores": dict.fromkeys(prediction.scores, 1.0), "detail": {**prediction.detail, "rank": 1}}
        session.add(_copy(prediction, id=new_id, counterfactual_id=counterfactual, **right))


def _copy_job(session: Session, job_id: str, copy_id: str) -> None:
    session.add(_copy(session.get_one(Job, job_id), id=copy_id, counts={}))
    session.flush()
    for source in session.scalars(select(SourceImage).where(SourceImage.job_id == job_id)).all():
        session.add(_copy(source, id=_name(source.id), job_id=copy_id))
    session.flush()
    for row in session.scalars(select(Counterfactual).where(Counterfactual.job_id == job_id)).all():
        session.add(_copy(row, id=_name(row.id), job_id=copy_id, source_image_id=_name(row.source_image_id)))
    session.flush()
    for prediction in session.scalars(select(Prediction).where(Prediction.job_id == job_id)).all():
        edit = prediction.counterfactual_id and _name(prediction.counterfactual_id)
        names = {
            "id": _name(prediction.id),
            "source_image_id": _name(prediction.source_image_id),
            "counterfactual_id": edit,
        }
        session.add(_copy(prediction, job_id=copy_id, **names))


def _name(original: str) -> str:
    """The id of a row's copy."""
    return derive_id("copy", original)


def _copy(row: Row, **changes: object) -> Row:
    stored = {column.key: getattr(row, column.key) for column in type(row).__mapper__.column_attrs}
    return type(row)(**{**stored, **changes})


def _add_refused_jobs(gateway: Gateway) -> None:
    with gateway.context.sessions() as session:
        digest = session.get_one(SourceImage, "s0").digest
    assert digest is not None
    strange = _keep_image(gateway)
    _add_job(gateway, "running", digest, "bus", state="running")
    _add_job(gateway, "streets", digest, None, kind="segmentation")
    _add_job(gateway, "strange", strange, "bus")
    _add_job(gateway, "relabelled", digest, "truck")
    _add_job(gateway, "unlabelled", digest, None)
    _add_job(gateway, "adaptive", digest, "bus")
    with gateway.context.sessions.begin() as session:
        session.get_one(Job, "adaptive").spec = StoredSpec(design="adaptive").model_dump(mode="json")
        session.add(JobRound(job_id="adaptive", number=0, plan=RoundPlan(number=0, places=[])))


def _keep_image(gateway: Gateway) -> str:
    image = from_array(np.full((8, 8, 3), 99, np.uint8))
    gateway.context.store.put(image_key(image.digest), image.png)
    with gateway.context.sessions.begin() as session:
        session.add(Image(digest=image.digest, width=8, height=8, bytes=len(image.png)))
        session.flush()
        session.add(OwnedImage(owner_id=LOCAL_OWNER, digest=image.digest))
    return image.digest


def _add_job(
    gateway: Gateway,
    job_id: str,
    digest: str,
    label: str | None,
    kind: Kind = "classification",
    state: JobState = "done",
) -> None:
    with gateway.context.sessions.begin() as session:
        job = Job(id=job_id, owner_id=LOCAL_OWNER, state=state, task_description="name it", kind=kind, profile="p")
        job.methods, job.models = [read_method("dillema", {})], list(MODELS)
        session.add(job)
        session.flush()
        session.add(
            SourceImage(id=f"{job_id}-0", job_id=job_id, position=0, digest=digest, ground_truth=label, state="done")
        )
        session.flush()
        store_counts(session, job_id)
