"""Recorded embeddings of a drawn job's images, as the image checks record them."""

from __future__ import annotations

import numpy as np
from sqlalchemy import select

from gateway.database.events import add_event
from gateway.database.tables import LOCAL_OWNER, Counterfactual, JobService, RecordedCall, SourceImage
from gateway.model_services.vectors import without_vectors
from shared.media.storage import call_key
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from tests.support.gateway_under_test import Gateway

WIDTH = 64
FAR = 2.0  # how far the images of `value` lie from the others, which have unit length and little noise


def record_embeddings(gateway: Gateway, job: str, value: str) -> dict[str, str | None]:
    """Record an embedding of each rendered edit; those to `value` lie apart. Returns the edits' values by id.

    A reply has the edits in reverse, because no reader may rely on their order.
    """
    random = np.random.default_rng(0)
    values: dict[str, str | None] = {}
    info = ServiceInfo(
        service="evaluator_service",
        profile="tiny",
        device="cpu",
        deterministic=True,
        revision="r1",
        weights=[],
        version="0",
    )
    with gateway.context.sessions.begin() as session:
        session.add(JobService(job_id=job, service=info.service, revision=info.revision, info=info))
        for source in session.scalars(select(SourceImage).where(SourceImage.job_id == job)):
            c = Counterfactual
            rows = select(c).where(c.source_image_id == source.id, c.arm == "edit", c.image_digest.is_not(None))
            edits = session.scalars(rows.order_by(c.ordinal.desc())).all()
            table = random.normal(0, 0.05, (len(edits) + 1, WIDTH))
            table[:, 0] += 1
            table[1:, 1] += FAR * np.array([edit.to_value == value for edit in edits])
            table /= np.linalg.norm(table, axis=1, keepdims=True)
            for vector, edit in zip(table[1:], edits, strict=True):
                edit.scores = {**edit.scores, "likeness": float(vector @ table[0])}
                values[edit.id] = edit.to_value
            reply, vectors = without_vectors({"images": table.tolist(), "texts": [], "logit_scale": 100.0})
            call = RecordedCall(
                key=f"{source.position:064}",
                owner_id=LOCAL_OWNER,
                endpoint=Services.embed.path,
                source_digest=source.digest,
                revision=info.revision,
                reply=reply,
                seconds=0.0,
            )
            session.add(call)
            if vectors is not None:
                gateway.context.store.put(call_key(call.key), vectors)
        add_event(session, job, "image", {})  # as every step does, so that maps are made anew
    return values
