"""What all tables have in common: constraint names, column types by annotation, and the clock of "when was it made"."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import JSON, MetaData, String
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

from gateway.database.sessions import UtcDateTime
from shared.schemas.jobs import JobKind, JobState, Stage
from shared.schemas.reviews import ReviewVerdict

SourceImageState = Literal["pending", "leased", "done", "failed", "cancelled"]
_Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")


def utc_now() -> datetime:
    """Now, by this machine's clock: for "when was it made", never for leases (they run on the database's clock)."""
    return datetime.now(UTC)


class Table(DeclarativeBase):
    """Common metadata, complete once `gateway.database.tables` is imported.

    It fixes constraint names, which migrations rely on, and the column types of annotations.
    """

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012
        datetime: UtcDateTime,
        dict[str, Any]: _Json,
        dict[str, float]: _Json,
        dict[str, str]: _Json,
        list[str]: _Json,
        list[dict[str, Any]]: _Json,
        JobState: String(16),
        JobKind: String(16),
        list[int]: _Json,
        SourceImageState: String(16),
        Stage: String(16),
        ReviewVerdict: String(16),
    }
