"""Copies of a job's rows, for suites and their runs. The database makes them, in one statement per table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from sqlalchemy import ColumnElement, insert, literal, select
from sqlalchemy.orm import Session

from gateway.database.columns import ID_PREFIX, JobColumns, SourceImageState
from gateway.database.sessions import ColumnValues
from gateway.database.table_base import utc_now
from gateway.database.tables import Counterfactual, Job, SourceImage, Table
from shared.schemas.base import JsonObject


def copy_job(job: Job, job_id: str, suite_id: str, spec: JsonObject) -> JobColumns:
    """The row of a suite's job or of a run, from that of the job with the images; without models under test."""
    return {
        "id": job_id,
        "owner_id": job.owner_id,
        "task_description": job.task_description,
        "kind": job.kind,
        "classes": job.classes,
        "methods": job.methods,
        "models": [],
        "uploaded_models": {},
        "profile": job.profile,
        "seed": job.seed,
        "spec": {"task_description": job.task_description, "suite": suite_id, **spec, **_kept_spec(job)},
        "suite_id": suite_id,
    }


def _kept_spec(job: Job) -> JsonObject:
    """The fields of a job's spec about masks, which give the colours of pictures, and the warning of its report."""
    return {name: job.spec[name] for name in ("masks", "label_map", "outside_domain_note") if name in job.spec}


class _CopiedSource(TypedDict, total=False):
    """Columns of a copied source image that differ from the original's."""

    state: SourceImageState
    generated: bool
    failure: str
    attempts: int
    lost_leases: int
    not_before: None
    lease_token: None
    lease_expires_at: None
    updated_at: datetime


class _CopiedCounterfactual(TypedDict, total=False):
    """Columns of a copied counterfactual that differ from the original's."""

    lineage: JsonObject


@dataclass(frozen=True, slots=True)
class RowCopies:
    """Copies rows into the job `job_id`. `first_id` is the id of a row in the job that rendered the images."""

    job_id: str
    first_id: Callable[[Any], Any]

    def sources(self, session: Session, condition: ColumnElement[bool], changes: _CopiedSource) -> None:
        fresh: _CopiedSource = {"failure": "", "attempts": 0, "lost_leases": 0, "not_before": None}
        unleased: _CopiedSource = {"lease_token": None, "lease_expires_at": None, "updated_at": utc_now()}
        values = {"job_id": self.job_id, **fresh, **unleased, **changes}
        self._copy(session, SourceImage, SourceImage, condition, values, ("id",))

    def counterfactuals(
        self, session: Session, row: Any, condition: ColumnElement[bool], changes: _CopiedCounterfactual | None = None
    ) -> None:
        values = {"job_id": self.job_id, **(changes or {})}
        self._copy(session, Counterfactual, row, condition, values, ("id", "source_image_id"))

    def _copy(
        self,
        session: Session,
        table: type[Table],
        row: Any,
        condition: ColumnElement[bool],
        values: ColumnValues,
        id_columns: tuple[str, ...],
    ) -> None:
        """Copy the rows with other `values`; `id_columns` hold ids of copied rows, which get the prefix of the job."""
        columns = list(table.__table__.columns)
        prefix = literal(f"{self.job_id[:ID_PREFIX]}-")
        copied: list[Any] = []
        for column in columns:
            if column.name in id_columns:
                copied.append(prefix.concat(self.first_id(getattr(row, column.name))))
            elif column.name in values:
                copied.append(literal(values[column.name], column.type))
            else:
                copied.append(getattr(row, column.name))
        session.execute(
            insert(table).from_select([column.name for column in columns], select(*copied).where(condition))
        )
