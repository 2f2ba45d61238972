"""A page of a job's counterfactuals with its place in the whole list, for people who page back and forth."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from gateway.database.pagination import decode_cursor, encode_cursor, page_of
from gateway.database.tables import Report
from gateway.results.counterfactuals import ORDER, Listing, matching, review_list
from gateway.results.views import counterfactual_views
from shared.schemas.results import CounterfactualView


@dataclass(frozen=True, slots=True)
class Browsed:
    """A page: its counterfactuals, the place of the first (from 1), and the cursors around it.

    `previous` is "" if that is the first page. Both cursors are None where there is no such page.
    """

    views: list[CounterfactualView]
    first: int
    previous: str | None
    next: str | None


def browse(session: Session, job_id: str, listing: Listing, cursor: str | None, limit: int) -> Browsed:
    """The page of at most `limit` counterfactuals after the cursor. Raises InvalidInput for another list's cursor."""
    if listing.order == "review":
        return _browse_review(session, job_id, listing, cursor, limit)
    query = matching(job_id, listing)
    rows, following = page_of(session, query, ORDER, cursor, limit)
    views = counterfactual_views(session, rows)
    if cursor is None or not rows:
        return Browsed(views, 1, "" if cursor is not None else None, following)
    key = (rows[0].position, rows[0].method, rows[0].ordinal)
    before = query.where(tuple_(*ORDER) < key)
    number = session.scalar(select(func.count()).select_from(before.subquery())) or 0
    previous = None if not number else ""
    if number > limit:
        last = before.with_only_columns(*ORDER).order_by(*(column.desc() for column in ORDER))
        previous = encode_cursor(list(session.execute(last.offset(limit).limit(1)).one()))
    return Browsed(views, number + 1, previous, following)


def _browse_review(session: Session, job_id: str, listing: Listing, cursor: str | None, limit: int) -> Browsed:
    report = session.get(Report, job_id)
    rows = review_list(session, job_id, listing, report.results if report else None)
    start = 0 if cursor is None else max(0, int(decode_cursor(cursor, (int,))[0]))
    end, back = start + limit, max(0, start - limit)
    views = counterfactual_views(session, rows[start:end])
    previous = None if not start else (encode_cursor((back,)) if back else "")
    return Browsed(views, start + 1, previous, encode_cursor((end,)) if len(rows) > end else None)
