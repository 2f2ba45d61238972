"""The originals of a job, predicted before anything is rendered: where no model is right on them, nothing is rendered.

A model with a mean score below `CHANNELS_BELOW` is asked again, with red and blue exchanged. The refusal, and the hint
at exchanged channels, are stored with the job, and the report repeats them (`gateway.results.job_rows.JobRows.checks`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import or_, select

from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.originals import is_better
from gateway.database.columns import PredictionColumns, StoredSpec
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Job, SourceImage
from gateway.kinds import KINDS, TaskKind
from gateway.kinds.originals import channel_hint
from gateway.kinds.rows import PredictionRow
from gateway.model_services.clients import BrokenOff, is_passing
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.worker.image_step import predict_original
from gateway.worker.image_work import ImageWork, source_of, true_boxes, true_questions
from shared.media.images import decode, encode
from shared.media.storage import ObjectMissing
from shared.problems import Problem
from shared.schemas.base import ImagePayload, JsonObject
from shared.schemas.boxes import TrueBox
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.questions import ImageQuestion
from shared.seeds import derive_seed

MOST_ORIGINALS = 128  # randomly sampled
CHANNELS_BELOW = 0.95  # mean score on the originals


class _Labelled(NamedTuple):
    """An original with ground truth: a label, the digest of a mask, boxes, or questions."""

    id: str
    digest: str
    label: str | None
    mask: str | None
    boxes: tuple[TrueBox, ...] | None
    questions: tuple[ImageQuestion, ...] | None
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
        self._kinds: dict[tuple[str, str], TaskKind[Any, Any]] = {}
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
        with self._asked_alone(work.job_id):
            if work.job_id not in self._answers:
                originals = _load(self._sessions, work.job_id)
                self._answers[work.job_id] = originals.refused or self._refuse(work, originals, services, shelf, link)
            return self._answers[work.job_id]

    def with_chosen(
        self, work: ImageWork, services: RecordedServices, shelf: ImageShelf, link: Callable[[str], str]
    ) -> ImageWork:
        """The work with the limits of confidence that the originals choose for each model, if the job wants that.

        Under 12 labelled originals nothing is chosen. Raises what a service in trouble raises.
        """
        if work.kind.choose is None:
            return work
        with self._asked_alone(work.job_id):
            for model in work.models:
                if (work.job_id, model.name) not in self._kinds:
                    kind = _choose(self._sessions, work, model.name, services, shelf, link)
                    self._kinds[work.job_id, model.name] = kind
            return replace(work, kinds={model.name: self._kinds[work.job_id, model.name] for model in work.models})

    @contextmanager
    def _asked_alone(self, job_id: str) -> Iterator[None]:
        with self._changing:
            asking = self._asking.setdefault(job_id, threading.Lock())
        with asking:
            yield

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
        hints: dict[str, str] = {}
        for name in originals.tested:
            check, hint = _check(work, name, originals, services, shelf, link)
            if check is not None and check.standing == "unsound":
                refused[name] = check
            if hint:
                hints[name] = hint
        refuses = 0 < len(refused) == len(originals.tested)
        _store(self._sessions, work.job_id, refused if refuses else {}, hints)
        return refuses


def _load(sessions: Sessions, job_id: str) -> _JobOriginals:
    with reading(sessions) as session:
        job = session.get_one(Job, job_id)
        s = SourceImage
        rows = session.execute(
            select(s.id, s.digest, s.ground_truth, s.mask_digest, s.boxes, s.questions, s.group_name)
            .where(s.job_id == job_id, s.digest.is_not(None))
            .where(or_(s.ground_truth.is_not(None), s.mask_classes.is_not(None)))
            .order_by(s.position)
        ).all()
        spec, classes, seed = job.stored_spec, list(job.classes), job.seed
        tested = [name for name in job.models if name not in spec.reference_models]
    groups: dict[tuple[bool, str], int] = {}
    images = []
    for row_id, digest, label, mask, boxes, questions, name in rows:
        group = groups.setdefault((name is not None, name or row_id), len(groups))
        truths = (true_boxes(boxes), true_questions(questions))
        images += [] if digest is None else [_Labelled(row_id, digest, label, mask, *truths, group)]
    if len(images) > MOST_ORIGINALS:
        sample = np.random.default_rng(derive_seed("sampled originals", seed))
        images = [images[n] for n in np.sort(sample.choice(len(images), MOST_ORIGINALS, replace=False))]
    return _JobOriginals(images, tested, classes, seed, bool(spec.refused))


def _store(sessions: Sessions, job_id: str, refused: dict[str, OriginalsCheck], hints: dict[str, str]) -> None:
    if not (refused or hints):
        return
    with sessions.begin() as session:
        job = session.get(Job, job_id, with_for_update=True)
        if job is not None and not job.stored_spec.refused:
            checks: JsonObject = {name: check.model_dump(mode="json") for name, check in refused.items()}
            job.spec = {**job.spec, "refused": checks, "channel_hints": dict(hints)}


def _choose(
    sessions: Sessions,
    work: ImageWork,
    name: str,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> TaskKind[Any, Any]:
    """The kind with the scores that the originals choose for a model: those stored with the job, if there are any."""
    with reading(sessions) as session:
        spec = session.get_one(Job, work.job_id).stored_spec
    if name not in spec.chosen_scores and work.kind.choose is not None:
        originals = _load(sessions, work.job_id)
        chosen: dict[str, float] = {}
        if len(originals.images) >= LEAST_SOURCES:
            predicted = _predicted(work, name, originals, services, shelf, link)
            chosen = work.kind.choose([_row(row) for _, _, row in predicted], originals.classes)
        spec = _store_chosen(sessions, work.job_id, name, chosen)
    return KINDS[work.kind.name].of_job(spec, name)


def _store_chosen(sessions: Sessions, job_id: str, name: str, chosen: dict[str, float]) -> StoredSpec:
    """The spec with the chosen scores; another worker may have stored them meanwhile."""
    with sessions.begin() as session:
        job = session.get_one(Job, job_id, with_for_update=True)
        stored = job.stored_spec.chosen_scores
        if name not in stored:
            by_model: JsonObject = {model: {**scores} for model, scores in {**stored, name: chosen}.items()}
            job.spec = {**job.spec, "chosen_scores": by_model}
        return job.stored_spec


def _check(
    work: ImageWork,
    name: str,
    originals: _JobOriginals,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> tuple[OriginalsCheck | None, str]:
    """How a model stands on the sample, and the hint at exchanged channels.

    Requests are those of the work on images whose edits are refused.
    """
    judge = work.kind_of(name).originals(originals.classes, "labelled", originals.seed)
    scored: list[tuple[ImageWork, float]] = []
    for of_image, group, row in _predicted(work, name, originals, services, shelf, link):
        judge.add(group, _row(row))
        scored += [(of_image, _mean(row["scores"]))] if row["scores"] else []
    return judge.check(), _channel_hint(scored, services, shelf, link)


def _predicted(
    work: ImageWork,
    name: str,
    originals: _JobOriginals,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> Iterator[tuple[ImageWork, int, PredictionColumns]]:
    """A model's predictions on the sample, each with the work on its image, and its group."""
    models = tuple(model for model in work.models if model.name == name)
    for image in originals.images:
        of_image = replace(
            work,
            id=image.id,
            digest=image.digest,
            ground_truth=image.label,
            mask_digest=image.mask,
            boxes=image.boxes,
            questions=image.questions,
            metamorphic=False,
            object_mask=None,
            models=models,
        )
        with _image_faults():
            for row in predict_original(of_image, services, shelf, link):
                yield of_image, image.group, row


def _channel_hint(
    scored: Sequence[tuple[ImageWork, float]],
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> str:
    """What to say of a model that is better with red and blue exchanged; "" of others, and of few or good scores."""
    if len(scored) < LEAST_SOURCES or sum(score for _, score in scored) >= CHANNELS_BELOW * len(scored):
        return ""
    pairs: list[tuple[float, float]] = []
    for of_image, score in scored:
        with _image_faults():
            pairs.append((score, _exchanged_score(of_image, services, shelf, link)))
    before, after = np.array(pairs, np.float64).reshape(-1, 2).T
    return channel_hint(before, after) if is_better(before, after) else ""


def _exchanged_score(
    work: ImageWork, services: RecordedServices, shelf: ImageShelf, link: Callable[[str], str]
) -> float:
    """The mean score of the work's model on its original with red and blue exchanged."""
    source, kind = source_of(work, shelf), work.kind
    exchanged = encode(np.ascontiguousarray(decode(source.image.png)[..., ::-1]))
    request = work.models[0].request(kind.endpoint, [ImagePayload(png=exchanged)], link, kind.asks(source))
    (answer,) = kind.answers(services.call(kind.endpoint, request), work.classes)
    return _mean(kind.judge(answer, kind.truth_of(source), work.classes).scores)


def _mean(scores: Mapping[str, float]) -> float:
    return sum(scores.values()) / len(scores)


@contextmanager
def _image_faults() -> Iterator[None]:
    """Pass over an original that the model refuses, or whose map has another size: it fails later, alone."""
    try:
        yield
    except Problem as fault:
        if isinstance(fault, BrokenOff) or is_passing(fault):
            raise
    except (ObjectMissing, ValueError):  # ValueError: a map of another size
        return


def _row(row: PredictionColumns) -> PredictionRow:
    return PredictionRow(
        0, "", None, row["model"], row["predicted"], row["probability"], None, row["scores"], row["detail"]
    )
