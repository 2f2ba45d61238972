"""The base of all tables: constraint names, column types by annotation, and the clock of creation times."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import MetaData, String
from sqlalchemy.orm import DeclarativeBase

from gateway.database.columns import (
    JSON_COLUMN,
    AnswerKind,
    ContractColumn,
    MethodsColumn,
    SourceImageState,
    StoredChange,
)
from gateway.database.sessions import UtcDateTime
from gateway.methods import JobMethod
from shared.schemas.base import JsonObject, Kind
from shared.schemas.designs import RoundPlan
from shared.schemas.jobs import JobState, Purpose, Stage
from shared.schemas.repairs import RepairProgress, RepairRequest, RepairResult
from shared.schemas.service import ServiceInfo
from shared.schemas.studies import ItemKind, StudyRequest
from shared.schemas.suites import SuiteFilters

Id = String(64)


def utc_now() -> datetime:
    """The time on this machine's clock, for creation times. Leases use the database's clock."""
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
        JsonObject: JSON_COLUMN,
        dict[str, float]: JSON_COLUMN,
        dict[str, int]: JSON_COLUMN,
        dict[str, str]: JSON_COLUMN,
        list[str]: JSON_COLUMN,
        list[JobMethod]: MethodsColumn,
        list[StoredChange]: JSON_COLUMN,
        RepairProgress: ContractColumn(RepairProgress),
        RepairRequest: ContractColumn(RepairRequest),
        RepairResult: ContractColumn(RepairResult),
        RoundPlan: ContractColumn(RoundPlan),
        ServiceInfo: ContractColumn(ServiceInfo),
        StudyRequest: ContractColumn(StudyRequest),
        SuiteFilters: ContractColumn(SuiteFilters, exclude_none=True),
        JobState: String(16),
        Purpose: String(16),
        Kind: String(16),
        ItemKind: String(16),
        SourceImageState: String(16),
        Stage: String(16),
        AnswerKind: String(16),
    }
