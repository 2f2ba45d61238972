"""Tables of single features: backgrounds of compositions, reviews, marks and notes, suites and repairs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database.table_base import Id, Table, utc_now
from shared.schemas.effects import Direction
from shared.schemas.finding_notes import FindingStatus
from shared.schemas.jobs import JobState
from shared.schemas.own_images import LONGEST_MARKED_VALUE, ShownMark
from shared.schemas.repairs import RepairProgress, RepairRequest, RepairResult
from shared.schemas.review_results import FailureMode
from shared.schemas.reviews import ReviewVerdict
from shared.schemas.suites import SuiteFilters


class JobBackground(Table):
    """An image or mask that a method of a job uses as background. The row keeps the image while the job exists."""

    __tablename__ = "job_backgrounds"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("images.digest"), primary_key=True, index=True)


class Review(Table):
    """One person's review of a counterfactual, compared with its source image. A new review replaces the old one.

    `reviewer` is the id of their API key (`gateway.auth.keys.KeyView`), or `LOCAL_OWNER` without API keys.
    `verdict`: whether the ground truth is still right, with `arm_shown` in the null or sham arm, too. `edit_shown`,
    `realism` (1 to 5, 5 is like a photograph) and `failure` are optional. Pages are sorted by (reviewed_at,
    counterfactual_id, reviewer), newest first.
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
    arm_shown: Mapped[bool] = mapped_column(default=False)
    realism: Mapped[int | None]
    failure: Mapped[FailureMode | None] = mapped_column(String(20))
    note: Mapped[str] = mapped_column(Text, default="")
    reviewed_at: Mapped[datetime] = mapped_column(default=utc_now)


class OwnImageMark(Table):
    """One person's mark of a source image: whether it shows a value of a factor. A new mark replaces the old one.

    `reviewer` is as in `Review`. Equal images of a job share their marks.
    """

    __tablename__ = "own_image_marks"
    __table_args__ = (CheckConstraint("shows IN ('yes', 'no', 'unsure')", name="shows"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    image_digest: Mapped[str] = mapped_column(Id, primary_key=True)
    factor: Mapped[str] = mapped_column(String(20), primary_key=True)
    value: Mapped[str] = mapped_column(String(LONGEST_MARKED_VALUE), primary_key=True)
    reviewer: Mapped[str] = mapped_column(String(64), primary_key=True)
    shows: Mapped[ShownMark]
    marked_at: Mapped[datetime] = mapped_column(default=utc_now)


class NotedFinding(Table):
    """A job's finding with a status, a note, or both; the last author's replaces the earlier one.

    `finding` is its id (`gateway.results.finding_notes`), made from the columns after it. The row stays while the job
    exists, also if a rebuilt report no longer has the finding.
    """

    __tablename__ = "noted_findings"
    __table_args__ = (
        CheckConstraint("status IN ('confirmed', 'artefact', 'fixed', 'known')", name="status"),
        CheckConstraint("direction IN ('to', 'from')", name="direction"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    finding: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(200))
    method: Mapped[str] = mapped_column(String(50))
    label: Mapped[str] = mapped_column(Text)
    factor: Mapped[str] = mapped_column(String(20))
    value: Mapped[str] = mapped_column(Text)
    direction: Mapped[Direction]
    status: Mapped[FindingStatus | None]
    note: Mapped[str] = mapped_column(Text, default="")
    author: Mapped[str] = mapped_column(String(64))
    noted_at: Mapped[datetime] = mapped_column(default=utc_now)


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
