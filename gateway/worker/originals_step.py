"""The originals of a job, predicted before anything is rendered: where no model is right on them, nothing is rendered.

The refusal is stored with the job, and the report repeats it (`gateway.results.job_rows.JobRows.checks`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from sqlalchemy import or_, select

from gateway.analysis.limits import LEAST_SOURCES
from gateway.database.columns import PredictionColumns
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, SourceImage
from gateway.kinds.rows import PredictionRow
from gateway.model_services.clients import BrokenOff, is_passing
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.worker.image_step import predict_original
from gateway.worker.image_work import ImageWork, true_boxes
from shared.media.storage import ObjectMissing
from shared.problems import Problem
from shared.schemas.base import JsonObject
from shared.schemas.boxes import TrueBox
from shared.schemas.metrics import OriginalsCheck
from shared.seeds import derive_seed

MOST_ORIGINALS = 128  # randomly sampled


class _Labelled(NamedTuple):
    """An original with ground truth: a label, the digest of a mask, or boxes."""

    id: str
    digest: str
    label: str | None
    mask: str | None
    boxes: tuple[TrueBox, ...] | None
    group: int


class _JobOriginals(NamedTuple):
    """A sample of a job's originals with ground truth, and what judging them needs; `refused`: they were refused."""

    images: list[_Labelled]
    tested: list[str]
    classes: list[str]
    seed: int
    refused: bool


class OriginalsGate:
    """Whether the models of a job are right on its originals, asked once per job by this worker. Thread-safe."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._answers: dict[str, bool] = {}
        self._asking: dict[str, threading.Lock] = {}
        self._changing = threading.Lock()

    def refuses(
        self, work: ImageWork, services: RecordedServices, shelf: ImageShelf, link: Callable[[str], str]
    ) -> bool:
        """Whether no counterfactual of this image would tell anything, since every model under test is unsound.

        Under 12 labelled originals, which test no cell, it asks nothing. An original that a model refuses is left
        out: it fails later, alone. Raises what a service in trouble raises.
        """
        if work.rendered is not None:
            return False
        with self._changing:
            asking = self._asking.setdefault(work.job_id, threading.Lock())
        with asking:
            if work.job_id not in self._answers:
                originals = _load(self._sessions, work.job_id)
                self._answers[work.job_id] = originals.refused or self._refuse(work, originals, services, shelf, link)
            return self._answers[work.job_id]

    def _refuse(
        self,
        work: ImageWork,
        originals: _JobOriginals,
        services: RecordedServices,
        shelf: ImageShelf,
        link: Callable[[str], str],
    ) -> bool:
        if len(originals.images) < LEAST_SOURCES:
            return False
        refused: dict[str, OriginalsCheck] = {}
        for name in originals.tested:
            check = _check(work, name, originals, services, shelf, link)
            if check is None or check.standing != "unsound":
                return False
            refused[name] = check
        if refused:
            _store(self._sessions, work.job_id, refused)
        return bool(refused)


def _load(sessions: Sessions, job_id: str) -> _JobOriginals:
    with reading(sessions) as session:
        job = session.get_one(Job, job_id)
        s = SourceImage
        rows = session.execute(
            select(s.id, s.digest, s.ground_truth, s.mask_digest, s.boxes, s.group_name)
            .where(s.job_id == job_id, s.digest.is_not(None))
            .where(or_(s.ground_truth.is_not(None), s.mask_classes.is_not(None)))
            .order_by(s.position)
        ).all()
        spec, classes, seed = job.stored_spec, list(job.classes), job.seed
        tested = [name for name in job.models if name not in spec.reference_models]
    groups: dict[tuple[bool, str], int] = {}
    images = []
    for row_id, digest, label, mask, boxes, name in rows:
        group = groups.setdefault((name is not None, name or row_id), len(groups))
        images += [] if digest is None else [_Labelled(row_id, digest, label, mask, true_boxes(boxes), group)]
    if len(images) > MOST_ORIGINALS:
        sample = np.random.default_rng(derive_seed("sampled originals", seed))
        images = [images[n] for n in np.sort(sample.choice(len(images), MOST_ORIGINALS, replace=False))]
    return _JobOriginals(images, tested, classes, seed, bool(spec.refused))


def _store(sessions: Sessions, job_id: str, refused: dict[str, OriginalsCheck]) -> None:
    with sessions.begin() as session:
        job = session.get(Job, job_id, with_for_update=True)
        if job is not None and not job.stored_spec.refused:
            checks: JsonObject = {name: check.model_dump(mode="json") for name, check in refused.items()}
            job.spec = {**job.spec, "refused": checks}


def _check(
    work: ImageWork,
    name: str,
    originals: _JobOriginals,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> OriginalsCheck | None:
    """How a model stands on the sample. Requests are those of the work on images whose edits are refused."""
    models = tuple(model for model in work.models if model.name == name)
    judge = work.kind.originals(originals.classes, "labelled", originals.seed)
    for image in originals.images:
        of_image = replace(
            work,
            id=image.id,
            digest=image.digest,
            ground_truth=image.label,
            mask_digest=image.mask,
            boxes=image.boxes,
            metamorphic=False,
            object_mask=None,
            models=models,
        )
        try:
            rows = predict_original(of_image, services, shelf, link)
        except (Problem, ObjectMissing, ValueError) as fault:  # ValueError: a map of another size
            if isinstance(fault, Problem) and (isinstance(fault, BrokenOff) or is_passing(fault)):
                raise
            continue
        for row in rows:
            judge.add(image.group, _row(row))
    return judge.check()


def _row(row: PredictionColumns) -> PredictionRow:
    return PredictionRow(
        0, "", None, row["model"], row["predicted"], row["probability"], None, row["scores"], row["detail"]
    )
