"""Pages of counterfactuals, filtered, in the order of (source position, method, ordinal)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from sqlalchemy import ColumnElement, Select, select, tuple_
from sqlalchemy.orm import Session

from gateway import jobs
from gateway.cursors import decode_cursor, encode_cursor
from gateway.tables import Counterfactual, Prediction, Report, SourceImage
from gateway.views import counterfactual_views
from shared.problems import NotFound
from shared.schemas.base import Contract
from shared.schemas.jobs import CounterfactualDetail, ResultsPage
from shared.schemas.results import JobResults

Text = Annotated[str, Field(max_length=200)]
Verdict = Literal["accepted", "rejected", "any"]
_ORDER = (Counterfactual.position, Counterfactual.method, Counterfactual.ordinal)


class Filters(Contract):
    """Which counterfactuals; several filters must all hold. `value` and `from` are of edits with one change."""

    method: Text | None = None
    factor: Text | None = None
    value: Annotated[Text | None, Field(description="the value that the edit changed to")] = None
    from_value: Annotated[Text | None, Field(alias="from", description="the value that the edit changed")] = None
    label: Annotated[Text | None, Field(alias="class", description="ground truth of the source image")] = None
    verdict: Verdict | None = None
    check: Annotated[Text | None, Field(description="the check that refused")] = None
    flipped: Annotated[bool | None, Field(description="the prediction changed (of `model`, else of any)")] = None
    model: Annotated[Text | None, Field(description="a model under test that saw it")] = None


def results_page(
    session: Session, owner: str, job_id: str, filters: Filters, cursor: str | None, limit: int
) -> ResultsPage:
    """The job's metrics and a page of its counterfactuals (edits; null arms are shown beside them)."""
    job = jobs.find(session, owner, job_id)
    query = _filtered(job_id, filters).order_by(*_ORDER).limit(limit + 1)
    if cursor is not None:
        query = query.where(tuple_(*_ORDER) > tuple(decode_cursor(cursor, (int, str, int))))
    rows = session.scalars(query).all()
    last = rows[limit - 1] if len(rows) > limit else None
    report = session.get(Report, job_id)
    return ResultsPage(
        job=job_id,
        state=job.state,
        metrics=JobResults.model_validate(report.metrics) if report else None,
        counterfactuals=counterfactual_views(session, rows[:limit]),
        failures=jobs.failures(session, job_id),
        next=encode_cursor((last.position, last.method, last.ordinal)) if last else None,
    )


def detail(session: Session, owner: str, job_id: str, counterfactual_id: str) -> CounterfactualDetail:
    """One counterfactual with its lineage. Raises NotFound."""
    row = _find(session, owner, job_id, counterfactual_id)
    (view,) = counterfactual_views(session, [row])
    return CounterfactualDetail(**view.model_dump(), lineage=row.lineage)


def neighbours(
    session: Session, owner: str, job_id: str, filters: Filters, counterfactual_id: str
) -> tuple[str | None, str | None]:
    """Ids of the counterfactuals before and after one, among those that the filters let through. Raises NotFound."""
    row = _find(session, owner, job_id, counterfactual_id)
    here = (row.position, row.method, row.ordinal)
    query = _filtered(job_id, filters).with_only_columns(Counterfactual.id).limit(1)
    backwards = [column.desc() for column in _ORDER]
    before = session.scalar(query.where(tuple_(*_ORDER) < here).order_by(*backwards))
    return before, session.scalar(query.where(tuple_(*_ORDER) > here).order_by(*_ORDER))


def _find(session: Session, owner: str, job_id: str, counterfactual_id: str) -> Counterfactual:
    jobs.find(session, owner, job_id)
    row = session.get(Counterfactual, counterfactual_id)
    if row is None or row.job_id != job_id or row.arm != "edit":
        raise NotFound(f"job {job_id} has no counterfactual {counterfactual_id!r}")
    return row


def _filtered(job_id: str, filters: Filters) -> Select[Counterfactual]:
    edits = select(Counterfactual).where(Counterfactual.job_id == job_id, Counterfactual.arm == "edit")
    return edits.where(*conditions(filters))


def conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """What the filters ask of a counterfactual's row."""
    columns = {
        Counterfactual.method: filters.method,
        Counterfactual.factor: filters.factor,
        Counterfactual.to_value: filters.value,
        Counterfactual.from_value: filters.from_value,
        Counterfactual.check: filters.check,
    }
    conditions = [column == wanted for column, wanted in columns.items() if wanted is not None]
    if filters.verdict not in (None, "any"):
        conditions.append(Counterfactual.accepted.is_(filters.verdict == "accepted"))
    if filters.label is not None:
        labelled = select(SourceImage.id).where(SourceImage.ground_truth == filters.label)
        conditions.append(Counterfactual.source_image_id.in_(labelled))
    if filters.flipped is not None or filters.model is not None:
        said = select(Prediction.id).where(Prediction.counterfactual_id == Counterfactual.id)
        if filters.model is not None:
            said = said.where(Prediction.model == filters.model)
        if filters.flipped is not None:
            said = said.where(Prediction.flipped.is_(filters.flipped))
        conditions.append(said.exists())
    return conditions
