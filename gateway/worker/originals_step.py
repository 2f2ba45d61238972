"""The originals of a job, predicted before anything is rendered: where no model is right on them, nothing is rendered.

The report says why (`gateway.results.originals`), from the predictions of all originals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import select

from gateway.analysis.limits import LEAST_SOURCES
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, SourceImage
from gateway.kinds.classification import CLASSIFICATION
from gateway.model_services.clients import BrokenOff, is_passing
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.models_under_test.of_job import TestedModel
from gateway.results.original_ranks import OriginalColumns
from gateway.results.originals import check_originals
from gateway.worker.image_work import ImageWork
from gateway.worker.messages import ModelInput, payloads, requests
from shared.endpoints import Services
from shared.problems import Problem
from shared.seeds import derive_seed

MOST_ORIGINALS = 256  # randomly sampled; the report judges all of them


class _Labelled(NamedTuple):
    digest: str
    label: str
    group: int


class _JobOriginals(NamedTuple):
    """A sample of a job's originals with ground truth, and what judging them needs."""

    images: list[_Labelled]
    tested: frozenset[str]
    classes: int
    seed: int


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

        Under 12 labelled originals, which test no cell, it asks nothing. A request that a model refuses is left out:
        it fails the images that it belongs to, later. Raises what a service in trouble raises.
        """
        if work.rendered is not None or work.kind is not CLASSIFICATION:
            return False
        with self._changing:
            asking = self._asking.setdefault(work.job_id, threading.Lock())
        with asking:
            if work.job_id not in self._answers:
                originals = _load(self._sessions, work.job_id)
                tested = [model for model in work.models if model.name in originals.tested]
                enough = bool(tested) and len(originals.images) >= LEAST_SOURCES
                self._answers[work.job_id] = enough and all(
                    _is_unsound(model, originals, work.pixels, services, shelf, link) for model in tested
                )
            return self._answers[work.job_id]


def _load(sessions: Sessions, job_id: str) -> _JobOriginals:
    with reading(sessions) as session:
        job = session.get_one(Job, job_id)
        s = SourceImage
        rows = session.execute(
            select(s.digest, s.ground_truth, s.group_name, s.id)
            .where(s.job_id == job_id, s.ground_truth.is_not(None), s.digest.is_not(None))
            .order_by(s.position)
        ).all()
        references = set(job.stored_spec.reference_models)
        tested, classes, seed = frozenset(job.models) - references, len(job.classes), job.seed
    groups: dict[tuple[bool, str], int] = {}
    images = [
        _Labelled(digest, label, groups.setdefault((group is not None, group or row_id), len(groups)))
        for digest, label, group, row_id in rows
        if digest is not None and label is not None
    ]
    if len(images) > MOST_ORIGINALS:
        sample = np.random.default_rng(derive_seed("sampled originals", seed))
        images = [images[n] for n in np.sort(sample.choice(len(images), MOST_ORIGINALS, replace=False))]
    return _JobOriginals(images, tested, classes, seed)


def _is_unsound(
    model: TestedModel,
    originals: _JobOriginals,
    pixels: int,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> bool:
    columns = OriginalColumns()
    predicted = _predict(model, originals.images, pixels, services, shelf, link)
    for image in originals.images:
        if image.digest in predicted:
            probabilities = predicted[image.digest]
            rank = None if image.label not in probabilities else 1
            columns.add(image.group, rank, image.label, max(probabilities, key=lambda name: probabilities[name]))
    check = check_originals(columns.arrays(), originals.classes, originals.seed)
    return check is not None and check.standing == "unsound"


def _predict(
    model: TestedModel,
    images: Sequence[_Labelled],
    pixels: int,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> Mapping[str, Mapping[str, float]]:
    """Probabilities by class of each original, by its digest."""
    probabilities: dict[str, Mapping[str, float]] = {}
    distinct = dict.fromkeys(image.digest for image in images)
    for batch in requests([ModelInput(None, digest) for digest in distinct], pixels):
        try:
            reply = services.predict(model.request(Services.predict, payloads(batch, shelf), link))
        except Problem as problem:
            if isinstance(problem, BrokenOff) or is_passing(problem):
                raise
            continue
        for item, values in zip(batch, reply.probabilities, strict=True):
            probabilities[item.digest] = dict(zip(reply.classes, values, strict=True))
    return probabilities
