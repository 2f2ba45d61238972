"""Pages of counterfactuals, filtered, in the order of (source position, method, ordinal) or of the review list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from sqlalchemy import Select, select, tuple_
from sqlalchemy.orm import Session

from gateway.database.pagination import SortKey, decode_cursor, encode_cursor, page_of
from gateway.database.tables import Counterfactual, Report
from gateway.feedback.notes import load_notes, with_notes
from gateway.jobs import jobs
from gateway.results.filters import Filters, conditions
from gateway.results.views import counterfactual_views
from shared.schemas.results import CounterfactualDetail, CounterfactualView, JobResults, ResultsPage

ORDER: SortKey = {Counterfactual.position: int, Counterfactual.method: str, Counterfactual.ordinal: int}


class Listing(Filters):
    """Filters and order of a list of counterfactuals."""

    order: Annotated[
        Literal["review"] | None,
        Field(description="review: in the order of `metrics.review`; default: by source image"),
    ] = None


def results_page(
    session: Session,
    owner: str,
    job_id: str,
    listing: Listing,
    cursor: str | None,
    limit: int,
    with_metrics: bool = True,
) -> ResultsPage:
    """The job's metrics and a page of its counterfactuals. Null arms are part of their counterfactual's view."""
    job = jobs.find(session, owner, job_id)
    report = session.get(Report, job_id) if with_metrics or listing.order == "review" else None
    metrics = with_notes(report.results, load_notes(session, job_id)) if report else None
    if listing.order == "review":
        rows, next_cursor = _review_page(session, job_id, listing, metrics, cursor, limit)
    else:
        rows, next_cursor = page_of(session, matching(job_id, listing), ORDER, cursor, limit)
    return ResultsPage(
        job=job_id,
        state=job.state,
        metrics=metrics if with_metrics else None,
        counterfactuals=counterfactual_views(session, rows),
        failures=jobs.failures(session, job_id),
        next=next_cursor,
    )


def first_views(session: Session, job_id: str, filters: Filters, limit: int) -> list[CounterfactualView]:
    """The first counterfactuals that match the filters, in the order of their source images."""
    query = matching(job_id, filters).order_by(*ORDER).limit(limit)
    return counterfactual_views(session, session.scalars(query).all())


def _review_page(
    session: Session, job_id: str, filters: Filters, metrics: JobResults | None, cursor: str | None, limit: int
) -> tuple[Sequence[Counterfactual], str | None]:
    """A page of the review list. Its cursor is a position in the list, which changes only with the report."""
    rows = review_list(session, job_id, filters, metrics)
    start = 0 if cursor is None else max(0, int(decode_cursor(cursor, (int,))[0]))
    return rows[start : start + limit], encode_cursor((start + limit,)) if len(rows) > start + limit else None


def review_list(
    session: Session, job_id: str, filters: Filters, metrics: JobResults | None
) -> Sequence[Counterfactual]:
    """The part of the review list that matches the filters, in its order. Empty if the job has no report."""
    positions = {name: position for position, name in enumerate(metrics.review if metrics else ())}
    rows = session.scalars(matching(job_id, filters).where(Counterfactual.id.in_(positions))).all()
    return sorted(rows, key=lambda row: positions[row.id])


def detail(session: Session, owner: str, job_id: str, counterfactual_id: str) -> CounterfactualDetail:
    """One counterfactual with its lineage. Raises NotFound."""
    row = jobs.find_edit(session, owner, job_id, counterfactual_id)
    (view,) = counterfactual_views(session, [row])
    return CounterfactualDetail(**view.model_dump(), lineage=row.lineage)


def neighbours(
    session: Session, owner: str, job_id: str, listing: Listing, counterfactual_id: str
) -> tuple[str | None, str | None]:
    """Ids of the previous and the next counterfactual that match the filters. Raises NotFound."""
    row = jobs.find_edit(session, owner, job_id, counterfactual_id)
    if listing.order == "review":
        report = session.get(Report, job_id)
        metrics = report.results if report else None
        ids = [None, *(member.id for member in review_list(session, job_id, listing, metrics)), None]
        index = ids.index(row.id) if row.id in ids else 0
        return (ids[index - 1], ids[index + 1]) if index else (None, None)
    key = (row.position, row.method, row.ordinal)
    query = matching(job_id, listing).with_only_columns(Counterfactual.id).limit(1)
    backwards = [column.desc() for column in ORDER]
    before = session.scalar(query.where(tuple_(*ORDER) < key).order_by(*backwards))
    return before, session.scalar(query.where(tuple_(*ORDER) > key).order_by(*ORDER))


def matching(job_id: str, filters: Filters) -> Select[Counterfactual]:
    """The edits of a job that match the filters."""
    edits = select(Counterfactual).where(Counterfactual.job_id == job_id, Counterfactual.arm == "edit")
    return edits.where(*conditions(filters))
