"""The tables. Times are UTC.

Ids of source images, counterfactuals and predictions derive from their content (`shared.seeds.derive_id`), so none can
be written twice. Deleting a job deletes its rows except recorded calls and images, which belong to the owner.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ColumnElement,
    ForeignKey,
    Index,
    String,
    Text,
    UniqueConstraint,
    and_,
    false,
    func,
    text,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column, relationship

from gateway.database.columns import JsonObject, StoredChange, StoredShare
from gateway.database.table_base import SourceImageState, utc_now
from gateway.database.table_base import (
    Table as Table,  # re-exported: imported from here, its metadata has all tables
)
from shared.logging import request_id
from shared.schemas.base import Kind
from shared.schemas.jobs import JobState, MethodChoice, Stage
from shared.schemas.reviews import ReviewVerdict

LOCAL_OWNER = "local"

_UNFINISHED_SQL = "state IN ('pending', 'leased')"
_Id = String(64)


def _where(condition: str) -> dict[str, Any]:
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


class Owner(Table):
    """An owner of jobs, separate from all others. Embedded mode has one: `LOCAL_OWNER`."""

    __tablename__ = "owners"

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ApiKey(Table):
    """An owner's API key; only its SHA-256 (hex) is stored.

    Limits that are None are the installation's. `requests_until` and `bytes_until` (seconds since 1970 on the
    database's clock) implement the rate limits: see `gateway.auth.keys.admit`.
    """

    __tablename__ = "api_keys"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(200), default="")
    scopes: Mapped[list[str]] = mapped_column(default=list)
    requests_per_minute: Mapped[int | None]
    bytes_per_hour: Mapped[int | None] = mapped_column(BigInteger)
    max_request_bytes: Mapped[int | None] = mapped_column(BigInteger)
    requests_until: Mapped[float] = mapped_column(default=0.0)
    bytes_until: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Login(Table):
    """A browser's session for an API key; only the SHA-256 (hex) of its cookie is stored."""

    __tablename__ = "logins"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_hash: Mapped[str] = mapped_column(ForeignKey("api_keys.hash", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]


class Image(Table):
    """An image in the object store, under the key of its digest (canonical pixels; see `shared.storage`).

    `unreferenced_since` is when housekeeping first saw that no row needs it (`gateway.operations.housekeeping`).
    """

    __tablename__ = "images"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    mode: Mapped[str] = mapped_column(String(4), default="RGB")
    width: Mapped[int]
    height: Mapped[int]
    bytes: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    unreferenced_since: Mapped[datetime | None] = mapped_column(index=True)


class OwnedImage(Table):
    """An owner who may see an image: who uploaded it, or owns the job that rendered it."""

    __tablename__ = "owned_images"

    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("images.digest"), primary_key=True, index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Upload(Table):
    """The SHA-256 of an uploaded file and the image made from it. Makes `PUT /images/{digest}` idempotent."""

    __tablename__ = "uploads"

    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"), primary_key=True)
    original_digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("images.digest"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Job(Leased, Table):
    """One request. `methods` is a list of {"name", "parameters"}; `spec` is the request's spec as it was accepted.

    `uploaded_models` are those of `models` that their owner uploaded, with the digests that they had when chosen.

    A job is leased for its analysis, once all its source images are finished; `done` means that its report exists.
    `report_due`: it was cancelled, and the report of what is done is still to be written.
    `request_id` names the HTTP request that made the job, in the log lines of everything that works on it.
    `suite_id`: the suite that the job tests a release against, or (its own id) whose images it keeps.
    `events` counts the job's event rows: taking the next number locks the job's row, so that numbers become visible
    in their order. `counts` are the counters of `gateway.database.counts`. With `deleted_at` the job is hidden, and
    its rows are being removed (`gateway.operations.deletion`). Pages go by (created_at, id), newest first.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("owner_id", "idempotency_key"),
        Index("ix_jobs_owner_id_created_at_id", "owner_id", "created_at", "id"),
        Index("ix_jobs_running", "id", **_where("state = 'running'")),
        Index("ix_jobs_report_due", "id", sqlite_where=text("report_due = 1"), postgresql_where=text("report_due")),
        CheckConstraint("state IN ('running', 'done', 'failed', 'cancelled')", name="state"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    state: Mapped[JobState] = mapped_column(default="running")
    report_due: Mapped[bool] = mapped_column(default=False, server_default=false())
    task_description: Mapped[str] = mapped_column("task", Text)
    kind: Mapped[Kind] = mapped_column(default="classification", server_default="classification")
    classes: Mapped[list[str]] = mapped_column(default=list)
    methods: Mapped[list[MethodChoice]]
    models: Mapped[list[str]] = mapped_column(default=list)
    uploaded_models: Mapped[dict[str, str]] = mapped_column(default=dict)
    profile: Mapped[str] = mapped_column(String(200))
    seed: Mapped[int] = mapped_column(BigInteger, default=0)
    spec: Mapped[JsonObject] = mapped_column(default=dict)
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    request_hash: Mapped[str] = mapped_column(String(64), default="")
    request_id: Mapped[str] = mapped_column(String(64), default=request_id)
    suite_id: Mapped[str | None] = mapped_column(String(64), index=True)
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


class SourceImage(Leased, Table):
    """An image of the user's test set in a job, with the state of the work on it (see `gateway.queue.leases`).

    While it is leased, `stage` is the current stage, None before its first service is ready. Once `generated`, its
    counterfactuals exist, and further work only adds missing predictions. Images are leased in the order of (turn,
    position): see `gateway.analysis.priority.turns`.

    `digest` is None only if the file is not a readable image; such a row is `failed` from the start. `mask_digest` is
    its mask, a label map with indices of the job's `classes`; `mask_classes` are the classes in it. Images with one
    `group_name` belong together, such as frames of one sequence; None: the image stands for itself.
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

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    position: Mapped[int]
    digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    file_name: Mapped[str] = mapped_column(Text, default="")
    ground_truth: Mapped[str | None] = mapped_column(Text)
    mask_digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    mask_classes: Mapped[list[str] | None]
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

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
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

    source_image: Mapped[SourceImage] = relationship()
    predictions: Mapped[list[Prediction]] = relationship(viewonly=True)

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
        return and_(cls.accepted, func.coalesce(cls.sham_check, cls.null_check, "") == "")

    @hybrid_property
    def evaluations(self) -> int | None:
        """Network evaluations that its image cost; None in a suite's copy, which has no lineage."""
        spent = self.lineage.get("evaluations")
        return spent if isinstance(spent, int) else None

    @evaluations.inplace.expression
    @classmethod
    def _evaluations(cls) -> ColumnElement[int | None]:
        stored: ColumnElement[int | None] = cls.lineage["evaluations"].as_integer()
        return stored


class Prediction(Table):
    """The prediction of one model under test for an original (`counterfactual_id` is None) or a counterfactual.

    `rank` is the ground truth's place (1 is first), None without ground truth or when the model does not know the
    class; acc@k is `rank <= k`. `ground_truth_probability` is the true softmax value even outside `top`, which
    holds the five most probable as {"class", "probability"}. `flipped` compares the predicted class with that of
    the original; it is None on originals.

    Of a segmenter, `predicted` is the class of most pixels, `probability` and `top` are shares of the image,
    `map_digest` is its label map (places in the job's `classes`), and `overlaps` holds the IoU of each class of the
    reference: the mask, or without masks in the job the map of the original. `confusion` are pixels by class of the
    reference and class predicted (`shared.label_maps.pack_counts`). `flipped`: a class that was found on the
    original is not.
    """

    __tablename__ = "predictions"
    __table_args__ = (Index("ix_predictions_job_id_model", "job_id", "model"),)

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    source_image_id: Mapped[str] = mapped_column(ForeignKey("source_images.id", ondelete="CASCADE"), index=True)
    counterfactual_id: Mapped[str | None] = mapped_column(
        ForeignKey("counterfactuals.id", ondelete="CASCADE"), index=True
    )
    model: Mapped[str] = mapped_column(String(200))
    predicted: Mapped[str] = mapped_column(Text)
    probability: Mapped[float]
    ground_truth_probability: Mapped[float | None]
    rank: Mapped[int | None]
    flipped: Mapped[bool | None]
    top: Mapped[list[StoredShare]]
    map_digest: Mapped[str | None] = mapped_column(ForeignKey("images.digest"), index=True)
    overlaps: Mapped[dict[str, float] | None]
    confusion: Mapped[list[int] | None]


class Review(Table):
    """One person's review of a counterfactual, compared with its source image. A new review replaces the old one.

    `reviewer` is the id of their API key (`gateway.auth.keys.KeyView`), or `LOCAL_OWNER` without API keys.
    `verdict`: whether the ground truth is still right. `edit_shown` and `realism` (1 to 5, 5 is like a photograph) are
    optional. Pages are sorted by (reviewed_at, counterfactual_id, reviewer), newest first.
    """

    __tablename__ = "reviews"
    __table_args__ = (
        Index("ix_reviews_job_id_reviewed_at", "job_id", "reviewed_at", "counterfactual_id", "reviewer"),
        CheckConstraint("verdict IN ('valid', 'invalid', 'unsure')", name="verdict"),
        CheckConstraint("realism BETWEEN 1 AND 5", name="realism"),
    )

    counterfactual_id: Mapped[str] = mapped_column(
        ForeignKey("counterfactuals.id", ondelete="CASCADE"), primary_key=True
    )
    reviewer: Mapped[str] = mapped_column(String(64), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    verdict: Mapped[ReviewVerdict]
    edit_shown: Mapped[bool | None]
    realism: Mapped[int | None]
    note: Mapped[str] = mapped_column(Text, default="")
    reviewed_at: Mapped[datetime] = mapped_column(default=utc_now)


class ModelUnderTest(Table):
    """A model under test that its owner uploaded; the package is in the object store under `shared.storage.model_key`.

    `digest` is the package's SHA-256, `classes` are the names of its outputs. The row is written last.
    """

    __tablename__ = "models_under_test"
    __table_args__ = (UniqueConstraint("owner_id", "name"), Index("ix_models_under_test_digest", "owner_id", "digest"))

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    digest: Mapped[str] = mapped_column(String(64))
    format: Mapped[str] = mapped_column(String(20))
    kind: Mapped[Kind] = mapped_column("task", String(20))
    classes: Mapped[list[str]]
    bytes: Mapped[int] = mapped_column(BigInteger)
    licence: Mapped[str] = mapped_column(String(200), default="")
    description: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Suite(Table):
    """Frozen counterfactuals: the job with the same id holds copies of their rows, without predictions.

    `made_from` is the job that `filters` selected them from; it may be deleted.
    """

    __tablename__ = "suites"
    __table_args__ = (UniqueConstraint("owner_id", "name"),)

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    made_from: Mapped[str] = mapped_column(_Id)
    filters: Mapped[JsonObject] = mapped_column(default=dict)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Repair(Table):
    """The training of a model under test on a job's accepted counterfactuals, by a trainer without database access.

    `token` identifies its current trainer, `beat` is the trainer's last heartbeat, `heard_at` its time by the
    database's clock; `lost` counts trainers that went silent without progress: see `gateway.repairs.dispatch`.
    `request`, `progress` and `result` are types of `shared.schemas.repairs`.
    """

    __tablename__ = "repairs"
    __table_args__ = (
        Index("ix_repairs_owner_id_created_at_id", "owner_id", "created_at", "id"),
        CheckConstraint("state IN ('running', 'done', 'failed', 'cancelled')", name="state"),
    )

    id: Mapped[str] = mapped_column(_Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    model: Mapped[str] = mapped_column(String(200))
    state: Mapped[JobState] = mapped_column(default="running", index=True)
    failure: Mapped[str] = mapped_column(Text, default="")
    request: Mapped[JsonObject]
    progress: Mapped[JsonObject] = mapped_column(default=dict)
    result: Mapped[JsonObject | None]
    token: Mapped[str | None] = mapped_column(String(64))
    beat: Mapped[int] = mapped_column(default=0)
    heard_at: Mapped[datetime | None]
    lost: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    finished_at: Mapped[datetime | None]


class RecordedCall(Table):
    """A recorded reply of a model service; `seconds` is the duration of the call.

    Images in `reply` are digests, large tables of numbers are marks (`gateway.model_services.vectors`); both are in
    the object store before the row is written. The row is deleted when no job of its owner has the source image
    `source_digest` any more: the first that made the call, where several share it.
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
    """A model service that made results of a job, with the revision that it had then: for the job's report.

    `info` is its `shared.schemas.service.ServiceInfo`. A service that was replaced while the job ran has several rows.
    """

    __tablename__ = "job_services"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    service: Mapped[str] = mapped_column(String(50), primary_key=True)
    revision: Mapped[str] = mapped_column(String(200), primary_key=True)
    info: Mapped[JsonObject]
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
