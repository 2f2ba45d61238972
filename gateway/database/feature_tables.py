"""Tables of single features: backgrounds of compositions, suites and repairs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database.table_base import Id, Table, utc_now
from shared.schemas.jobs import JobState
from shared.schemas.repairs import RepairProgress, RepairRequest, RepairResult
from shared.schemas.suites import SuiteFilters


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
