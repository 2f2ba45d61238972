"""The tables; importing this module gives all of them. Times are UTC.

Ids of source images, counterfactuals and predictions derive from their content (`shared.seeds.derive_id`), so none can
be written twice. Deleting a job deletes its rows except recorded calls and images, which belong to the owner.

Tables of single features: backgrounds of compositions, suites and repairs.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TypedDict

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ColumnElement,
    ForeignKey,
    Index,
    String,
    Text,
    TextClause,
    UniqueConstraint,
    and_,
    cast,
    false,
    func,
    or_,
    text,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column, relationship

from gateway.database.columns import JSON_COLUMN, SourceImageState, StoredChange, StoredSpec
from gateway.database.feedback_tables import Answer as Answer
from gateway.database.feedback_tables import Study as Study
from gateway.database.feedback_tables import StudyItem as StudyItem
from gateway.database.feedback_tables import StudyRater as StudyRater
from gateway.database.owner_tables import LOCAL_OWNER as LOCAL_OWNER
from gateway.database.owner_tables import ApiKey as ApiKey
from gateway.database.owner_tables import Image as Image
from gateway.database.owner_tables import Login as Login
from gateway.database.owner_tables import ModelUnderTest as ModelUnderTest
from gateway.database.owner_tables import OwnedImage as OwnedImage
from gateway.database.owner_tables import Owner as Owner
from gateway.database.owner_tables import Upload as Upload
from gateway.database.table_base import Id, utc_now
from gateway.database.table_base import (
    Table as Table,  # re-exported: imported from here, its metadata has all tables
)
from gateway.methods import JobMethod
from shared.schemas.base import JsonObject, Kind
from shared.schemas.designs import RoundPlan
from shared.schemas.jobs import JobState, Purpose, Stage
from shared.schemas.repairs import RepairProgress, RepairRequest, RepairResult
from shared.schemas.results import JobResults
from shared.schemas.service import ServiceInfo
from shared.schemas.suites import SuiteFilters
from shared.service.logging import request_id

OF_SUITES: tuple[Purpose, ...] = ("suite", "run")
_UNFINISHED_SQL = "state IN ('pending', 'leased')"


class _PartialIndex(TypedDict):
    sqlite_where: TextClause
    postgresql_where: TextClause


def _where(condition: str) -> _PartialIndex:
    """The condition of a partial index, for both databases."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class Leased:
    """Columns of a row that workers lease. Only `gateway.queue.leases` writes them.

    `attempts` counts failures that the row itself caused, `lost_leases` failures of unknown cause.
    """

    failure: Mapped[str] = mapped_column(Text, default="")
    lease_token: Mapped[str | None] = mapped_column(String(64), index=True)
    lease_expires_at: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    lost_leases: Mapped[int] = mapped_column(default=0)


class Job(Leased, Table):
    """One request. `spec` is the request's spec; of a suite's job and of a run, the fields that they need.

    `uploaded_models` holds the digests of the uploaded models among `models`, from the time of the request.

    A job is leased for its analysis when all its source images are finished; `done` means that its report exists.
    `report_due`: the job was cancelled, and the report of its finished images is not written yet.
    `request_id` names the HTTP request that created the job, in the log lines of all work on it.
    A job that is not for `test` is on the rows of the job or suite `parent_id`: it tests findings again
    (`confirmation`), renders weaknesses at other doses (`doses`), keeps the images of a suite (`suite`, with the
    suite's id) or tests a release against a suite (`run`, whose parent is the suite).
    `events` counts the job's events: taking the next number locks the job's row, so numbers become visible in order.
    `counts` are the counters of `gateway.database.counts`. A job with `deleted_at` is hidden, and its rows are being
    removed (`gateway.operations.deletion`). Pages are sorted by (created_at, id), newest first.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("owner_id", "idempotency_key"),
        Index("ix_jobs_owner_id_created_at_id", "owner_id", "created_at", "id"),
        Index("ix_jobs_running", "id", **_where("state = 'running'")),
        Index("ix_jobs_report_due", "id", sqlite_where=text("report_due = 1"), postgresql_where=text("report_due")),
        CheckConstraint("state IN ('running', 'done', 'failed', 'cancelled')", name="state"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    state: Mapped[JobState] = mapped_column(default="running")
    report_due: Mapped[bool] = mapped_column(default=False, server_default=false())
    task_description: Mapped[str] = mapped_column("task", Text)
    kind: Mapped[Kind] = mapped_column(default="classification", server_default="classification")
    classes: Mapped[list[str]] = mapped_column(default=list)
    methods: Mapped[list[JobMethod]]
    models: Mapped[list[str]] = mapped_column(default=list)
    uploaded_models: Mapped[dict[str, str]] = mapped_column(default=dict)
    profile: Mapped[str] = mapped_column(String(200))
    seed: Mapped[int] = mapped_column(BigInteger, default=0)
    spec: Mapped[JsonObject] = mapped_column(default=dict)
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_hash: Mapped[str] = mapped_column(String(64), default="")
    request_id: Mapped[str] = mapped_column(String(64), default=request_id)
    purpose: Mapped[Purpose] = mapped_column(default="test", server_default="test")
    parent_id: Mapped[str | None] = mapped_column(String(64), index=True)
    events: Mapped[int] = mapped_column(default=0)
    counts: Mapped[dict[str, int]] = mapped_column(default=dict, server_default="{}")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    finished_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    source_images: Mapped[list[SourceImage]] = relationship(
        back_populates="job", cascade="all, delete-orphan", passive_deletes=True, order_by="SourceImage.position"
    )
    report: Mapped[Report | None] = relationship(
        back_populates="job", cascade="all, delete-orphan", passive_deletes=True
    )

    @property
    def suite_id(self) -> str | None:
        """The suite of a suite's job or of a run."""
        return self.id if self.purpose == "suite" else self.parent_id if self.purpose == "run" else None

    @property
    def stored_spec(self) -> StoredSpec:
        """The fields of `spec` that work on the job reads, in their types."""
        return StoredSpec.model_validate(self.spec)


class SourceImage(Leased, Table):
    """An image of the user's test set in a job, with the state of the work on it (see `gateway.queue.leases`).

    `stage` is the current stage while the image is leased, None before its first service is ready. If `generated` is
    true, its counterfactuals exist, and further work only adds missing predictions. Images are leased in the order of
    (turn, position): see `gateway.analysis.priority.turns`.

    `digest` is None only if the file is not a readable image; such a row is `failed` from the start. `mask_digest` is
    its mask, a label map with indices of the job's `classes`; `mask_classes` are the classes in it. `boxes` are those
    of a detection job (`shared.schemas.boxes.TrueBox`); then `mask_classes` are their classes, so that these are not
    null where an image's ground truth has places in it. `questions` are those of a job of questions
    (`shared.schemas.questions.ImageQuestion`), and `mask_classes` the labels of those with answers. `object_digest` is
    the mask of its object (not 0), which is not a ground truth. Images with the same `group_name` belong together,
    such as frames of one sequence. An image with None is independent of all others.
    """

    __tablename__ = "source_images"
    __table_args__ = (
        UniqueConstraint("job_id", "position"),
        Index("ix_source_images_unfinished", "job_id", "turn", "position", **_where(_UNFINISHED_SQL)),
        Index("ix_source_images_leased", "job_id", "lease_expires_at", **_where("state = 'leased'")),
        Index("ix_source_images_job_id_digest", "job_id", "digest"),
        Index("ix_source_images_job_id_state", "job_id", "state", "position"),
        Index("ix_source_images_job_id_updated_at", "job_id", "updated_at"),
        CheckConstraint("state IN ('pending', 'leased', 'done', 'failed', 'cancelled')", name="state"),
        CheckConstraint("(state = 'leased') = (lease_token IS NOT NULL)", name="lease"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    position: Mapped[int]
    digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    file_name: Mapped[str] = mapped_column(Text, default="")
    ground_truth: Mapped[str | None] = mapped_column(Text)
    mask_digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    mask_classes: Mapped[list[str] | None]
    boxes: Mapped[list[JsonObject] | None] = mapped_column(JSON_COLUMN)
    questions: Mapped[list[JsonObject] | None] = mapped_column(JSON_COLUMN)
    object_digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    group_name: Mapped[str | None] = mapped_column(Text)
    turn: Mapped[int] = mapped_column(default=0)
    generated: Mapped[bool] = mapped_column(default=False)
    state: Mapped[SourceImageState] = mapped_column(default="pending")
    stage: Mapped[Stage | None]
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)

    job: Mapped[Job] = relationship(back_populates="source_images")


class Counterfactual(Table):
    """One edit or null arm of a source image by one method (see `gateway.methods.counterfactual`).

    `factor`, `from_value`, `to_value` repeat a single change for filters; `changes` holds all changes. Null arms have
    neither. `image_digest` is None if a text check rejected the edit before rendering. Pages are sorted by (position,
    method, ordinal), which is unique in a job.

    `null_check` and `sham_check` name the check that an edit's null arm or sham arm fails, "" if it passes all. None:
    the edit has no such arm, or it was not checked (rows from before these columns); then the edit alone decides.
    """

    __tablename__ = "counterfactuals"
    __table_args__ = (
        UniqueConstraint("job_id", "position", "method", "ordinal"),
        Index("ix_counterfactuals_cell", "job_id", "method", "factor", "to_value"),
        Index("ix_counterfactuals_funnel", "job_id", "method", "arm", "check"),
        CheckConstraint("arm IN ('edit', 'null', 'sham')", name="arm"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    source_image_id: Mapped[str] = mapped_column(ForeignKey("source_images.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]
    method: Mapped[str] = mapped_column(String(50))
    ordinal: Mapped[int]
    arm: Mapped[str] = mapped_column(String(8))
    null_ordinal: Mapped[int | None]
    null_check: Mapped[str | None] = mapped_column(String(50))
    sham_ordinal: Mapped[int | None]
    sham_check: Mapped[str | None] = mapped_column(String(50))
    seed: Mapped[int] = mapped_column(BigInteger)
    changes: Mapped[list[StoredChange]] = mapped_column(default=list)
    factor: Mapped[str | None] = mapped_column(String(20))
    from_value: Mapped[str | None] = mapped_column(Text)
    to_value: Mapped[str | None] = mapped_column(Text)
    caption: Mapped[str] = mapped_column(Text, default="")
    new_caption: Mapped[str] = mapped_column(Text, default="")
    image_digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    control_digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    accepted: Mapped[bool]
    check: Mapped[str] = mapped_column(String(50), default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    scores: Mapped[dict[str, float]] = mapped_column(default=dict)
    lineage: Mapped[JsonObject] = mapped_column(default=dict)

    @hybrid_property
    def lost_to(self) -> str:
        """The check that the arm fails which an edit is measured against (sham arm, or else null arm); "" if none."""
        return (self.null_check if self.sham_check is None else self.sham_check) or ""

    @lost_to.inplace.expression
    @classmethod
    def _lost_to(cls) -> ColumnElement[str]:
        return func.coalesce(cls.sham_check, cls.null_check, "")

    @hybrid_property
    def counted(self) -> bool:
        """Whether an edit enters the main estimates: both it and the arm that it is measured against are accepted."""
        return self.accepted and not self.lost_to

    @counted.inplace.expression
    @classmethod
    def _counted(cls) -> ColumnElement[bool]:
        return and_(cls.accepted, cls.lost_to == "")

    @hybrid_property
    def evaluations(self) -> int | None:
        """Network evaluations for its image; None in a suite's copy, which has no lineage."""
        evaluations = self.lineage.get("evaluations")
        return evaluations if isinstance(evaluations, int) else None

    @evaluations.inplace.expression
    @classmethod
    def _evaluations(cls) -> ColumnElement[int | None]:
        stored: ColumnElement[int | None] = cls.lineage["evaluations"].as_integer()
        return stored


class Prediction(Table):
    """The prediction of one model under test for an original (`counterfactual_id` is None) or a counterfactual.

    `scores`, `detail` and `image_digest` are those of `gateway.kinds.Scored`: the scores by label of the truth (empty
    without one, or if the model does not know it), what is the kind's own, and the picture of a prediction. `flipped`:
    whether the prediction changed; None on originals, or if that is not known.
    """

    __tablename__ = "predictions"
    __table_args__ = (Index("ix_predictions_job_id_model", "job_id", "model"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    source_image_id: Mapped[str] = mapped_column(ForeignKey("source_images.id", ondelete="CASCADE"), index=True)
    counterfactual_id: Mapped[str | None] = mapped_column(
        ForeignKey("counterfactuals.id", ondelete="CASCADE"), index=True
    )
    model: Mapped[str] = mapped_column(String(200))
    predicted: Mapped[str] = mapped_column(Text)
    probability: Mapped[float]
    flipped: Mapped[bool | None]
    scores: Mapped[dict[str, float]] = mapped_column(default=dict)
    detail: Mapped[JsonObject] = mapped_column(default=dict)
    image_digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)


class RecordedCall(Table):
    """A recorded reply of a model service; `seconds` is the duration of the call.

    `reply` holds digests of images and marks of large tables of numbers (`gateway.model_services.vectors`); the object
    store has both before the row is written. `source_digest` is the source image of the first call. The row is deleted
    when no job of its owner has that image any more.
    """

    __tablename__ = "recorded_calls"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"), index=True)
    endpoint: Mapped[str] = mapped_column(String(50))
    source_digest: Mapped[str | None] = mapped_column(String(64))
    revision: Mapped[str] = mapped_column(String(200))
    reply: Mapped[JsonObject] = mapped_column(JSON)  # not JSONB, which would reorder keys and refuse some strings
    seconds: Mapped[float]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class JobService(Table):
    """A model service that a job used, with its revision at that time, for the job's report.

    A service that was replaced while the job ran has several rows.
    """

    __tablename__ = "job_services"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    service: Mapped[str] = mapped_column(String(50), primary_key=True)
    revision: Mapped[str] = mapped_column(String(200), primary_key=True)
    info: Mapped[ServiceInfo]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class JobRound(Table):
    """A round of an adaptive job, from 0: which source images get which values. It is written once, never changed.

    The first is planned with the job, each later one from the rows of those before it (`gateway.results.rounds`).
    """

    __tablename__ = "job_rounds"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    plan: Mapped[RoundPlan]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Event(Table):
    """An event of a job. `sequence` counts from 1 within the job, in commit order."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(50))
    payload: Mapped[JsonObject] = mapped_column(default=dict)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Chore(Table):
    """A periodic task that one worker runs for all: when it last began, on the database's clock."""

    __tablename__ = "chores"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    begun_at: Mapped[datetime]


class Report(Table):
    """The report of a finished job: the page in the object store, and its metrics."""

    __tablename__ = "reports"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    object_key: Mapped[str] = mapped_column(String(300))
    metrics: Mapped[JsonObject]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)

    job: Mapped[Job] = relationship(back_populates="report")

    @property
    def results(self) -> JobResults:
        """The metrics in their type. Validates them, so that pages which need no metrics do not pay for it."""
        return JobResults.model_validate(self.metrics)


class JobBackground(Table):
    """An image or mask that a method of a job uses as background. The row keeps the image while the job exists."""

    __tablename__ = "job_backgrounds"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("images.digest"), primary_key=True, index=True)


class Suite(Table):
    """Frozen counterfactuals: the job with the same id holds copies of their rows, without predictions.

    `filters` selected them from the job `made_from`, which may be deleted.
    """

    __tablename__ = "suites"
    __table_args__ = (UniqueConstraint("owner_id", "name"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    made_from: Mapped[str] = mapped_column(Id)
    filters: Mapped[SuiteFilters] = mapped_column(default=SuiteFilters)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Repair(Table):
    """The training of a model under test on a job's accepted counterfactuals, by a trainer without database access.

    `token` identifies its current trainer, `beat` is the trainer's last heartbeat, `heard_at` its time by the
    database's clock; `lost` counts trainers that stopped without progress: see `gateway.repairs.dispatch`.
    """

    __tablename__ = "repairs"
    __table_args__ = (
        Index("ix_repairs_owner_id_created_at_id", "owner_id", "created_at", "id"),
        CheckConstraint("state IN ('running', 'done', 'failed', 'cancelled')", name="state"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    model: Mapped[str] = mapped_column(String(200))
    state: Mapped[JobState] = mapped_column(default="running", index=True)
    failure: Mapped[str] = mapped_column(Text, default="")
    request: Mapped[RepairRequest]
    progress: Mapped[RepairProgress] = mapped_column(default=RepairProgress)
    result: Mapped[RepairResult | None]
    token: Mapped[str | None] = mapped_column(String(64))
    beat: Mapped[int] = mapped_column(default=0)
    heard_at: Mapped[datetime | None]
    lost: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    finished_at: Mapped[datetime | None]


def has_class(label: str) -> ColumnElement[bool]:
    """Whether a source image's ground truth names the class, as its label or in its mask."""
    return or_(SourceImage.ground_truth == label, has_text(cast(SourceImage.mask_classes, Text), label))


def has_text(json_text: ColumnElement[str], label: str, after: str = "") -> ColumnElement[bool]:
    """Whether the text of a JSON column has a string, and `after` behind it."""
    texts = {json.dumps(label), json.dumps(label, ensure_ascii=False)}  # SQLite and Postgres store JSON differently
    return or_(*(json_text.contains(text + after, autoescape=True) for text in sorted(texts)))
