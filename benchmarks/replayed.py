"""Load a finished job for `benchmarks.priority`: images with their seconds, edits with their faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.analysis.effects import Outcomes
from gateway.analysis.priority import Fault
from gateway.database.tables import Counterfactual, Job, Prediction, RecordedCall, SourceImage
from gateway.report.review_order import ReviewList
from gateway.results.classification import load_rows
from gateway.results.measure import measure
from gateway.results.pairing import CounterfactualRow, Triple, triples
from gateway.results.stream import SourceRows, cells_of, stream_sources
from shared.chunks import chunks
from shared.images import decode
from shared.storage import ObjectStore, image_key
from tinyworld.judges.oracles.objects import judge
from tinyworld.yardstick.formats import AnswerKey
from tinyworld.yardstick.score import truth_of

JUDGED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Image:
    """A source image: its class, the models' mean probability of this class, and the seconds of its calls."""

    label: str
    confidence: float
    seconds: float


@dataclass(slots=True)
class Edit:
    """A rendered edit of image number `image`. `shows`: faults of the key that it shows validly.

    `cell`: class and new value, known before rendering. `failed`: some model is right on the null arm and wrong here.
    `loss`: the greatest loss of the ground truth's probability among these models. `confidence`: the confidence of the
    least sure model.
    """

    id: str
    image: int
    cell: tuple[str, str]
    captions: tuple[str, str]
    accepted: bool
    failed: bool
    loss: float
    confidence: float
    suspected: frozenset[Fault]
    shows: frozenset[Fault] = frozenset()


@dataclass(frozen=True, slots=True)
class Replay:
    """One method of one job. `edits` are in the order of their rendering; `review` is the report's review list."""

    method: str
    images: list[Image]
    edits: list[Edit]
    review: list[str]
    outcomes: dict[str, Outcomes]  # by model under test
    weaknesses: frozenset[Fault]

    @property
    def faults(self) -> frozenset[Fault]:
        """The faults that at least one edit shows."""
        return frozenset(fault for edit in self.edits for fault in edit.shows)


def replays(session: Session, store: ObjectStore, key: AnswerKey) -> Iterator[Replay]:
    """Every method of every finished job that tests only models of the key and shows at least one fault of the key."""
    models_of_key = {model.name for model in key.models}
    for job in session.scalars(select(Job).where(Job.state == "done").order_by(Job.created_at)):
        if not job.models or not set(job.models) <= models_of_key:
            continue
        rows = load_rows(session, job.id)
        results = measure(rows)
        review = ReviewList(results)
        streamed = list(review.collect(stream_sources(session, job.id, rows.relation)))
        for method in rows.methods:
            weaknesses = _weaknesses(key, job.models, method)
            images, edits = _images(session, job, streamed), _edits(session, job, method, streamed, weaknesses)
            _look(session, store, edits, images)
            outcomes = {model: rows.models[model, method].outcomes for model in job.models}
            replay = Replay(method, images, edits, review.order(), outcomes, weaknesses)
            if replay.faults:
                yield replay


def _weaknesses(key: AnswerKey, models: Sequence[str], method: str) -> frozenset[Fault]:
    return frozenset(
        Fault(model.name, method, true.cell)
        for model in key.models
        for true in model.cells
        if model.name in models and truth_of(true) == "weakness"
    )


def _images(session: Session, job: Job, streamed: Sequence[SourceRows]) -> list[Image]:
    seconds = dict(
        session.execute(
            select(SourceImage.id, func.sum(RecordedCall.seconds))
            .join(RecordedCall, RecordedCall.source_digest == SourceImage.digest)
            .where(SourceImage.job_id == job.id)
            .group_by(SourceImage.id)
        ).all()
    )
    images = []
    for rows in streamed:
        confidences = [row.p_truth or 0.0 for row in rows.predictions if row.counterfactual_id is None]
        images.append(
            Image(
                rows.source.ground_truth or "",
                sum(confidences) / max(1, len(confidences)),
                seconds.get(rows.source.id, 0.0),
            )
        )
    return images


def _captions(session: Session, job: Job, method: str) -> dict[str, tuple[str, str]]:
    """Caption and new caption of each edit of a method."""
    return {
        row.id: (row.caption, row.new_caption)
        for row in session.execute(
            select(Counterfactual.id, Counterfactual.caption, Counterfactual.new_caption).where(
                Counterfactual.job_id == job.id, Counterfactual.method == method, Counterfactual.arm == "edit"
            )
        )
    }


def _least_confidence(session: Session, job: Job) -> dict[str | None, float]:
    """The least probability that a model under test gives its prediction, of each counterfactual."""
    return dict(
        session.execute(
            select(Prediction.counterfactual_id, func.min(Prediction.probability))
            .where(Prediction.job_id == job.id, Prediction.counterfactual_id.is_not(None))
            .group_by(Prediction.counterfactual_id)
        ).all()
    )


def _edits(
    session: Session, job: Job, method: str, streamed: Sequence[SourceRows], weaknesses: frozenset[Fault]
) -> list[Edit]:
    captions, least_confidence = _captions(session, job, method), _least_confidence(session, job)
    edits = []
    for number, rows in enumerate(streamed):
        for triple in triples(rows.counterfactuals):
            row = triple.edit
            if row.method == method and row.rendered:
                failed, loss = _describe_failures(rows, triple, job.models)
                label = rows.source.ground_truth or ""
                suspected = frozenset(Fault(m, method, cell) for m in failed for cell in cells_of(row, label))
                edits.append(
                    Edit(
                        id=row.id,
                        image=number,
                        cell=(label, ", ".join(change["to_value"] for change in row.changes)),
                        captions=captions[row.id],
                        accepted=row.accepted,
                        failed=row.accepted and bool(failed),
                        loss=loss,
                        confidence=least_confidence.get(row.id, 1.0),
                        suspected=suspected & weaknesses if row.accepted else frozenset(),
                    )
                )
    return edits


def _describe_failures(
    rows: SourceRows, triple: Triple[CounterfactualRow], models: Sequence[str]
) -> tuple[list[str], float]:
    """The models that are right on the reference arm and wrong on the edit, and their greatest loss of probability."""
    failed, loss = [], 0.0
    for model in models:
        compared = triple.predictions(rows.predictions_of(model))
        before, after = compared.reference, compared.counterfactual
        if before is not None and after is not None and before.rank == 1 and after.rank != 1:
            failed.append(model)
            loss = max(loss, (before.p_truth or 0.0) - (after.p_truth or 0.0))
    return failed, loss


def _look(session: Session, store: ObjectStore, edits: Sequence[Edit], images: Sequence[Image]) -> None:
    """Fill in the faults that edits show: those that they suspect, if both oracles still see the class."""
    waiting = [edit for edit in edits if edit.suspected]
    digests: dict[str, str] = {}
    for batch in chunks(waiting, JUDGED_AT_ONCE):
        query = select(Counterfactual.id, Counterfactual.image_digest).where(
            Counterfactual.id.in_([edit.id for edit in batch])
        )
        digests |= {name: digest or "" for name, digest in session.execute(query)}
        readings = judge([decode(store.get(image_key(digests[edit.id]))) for edit in batch])
        for edit, reading in zip(batch, readings, strict=True):
            if reading["label"] == images[edit.image].label:
                edit.shows = edit.suspected
