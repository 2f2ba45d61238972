"""Stores and reads people's reviews of counterfactuals."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.pagination import SortKey, page_of
from gateway.database.sessions import upsert
from gateway.database.table_base import utc_now
from gateway.database.tables import Review
from gateway.jobs import jobs
from gateway.results import counterfactuals
from shared.problems import InvalidInput
from shared.schemas.reviews import ReviewRequest, ReviewsPage, ReviewView


def record(
    session: Session, owner: str, reviewer: str, job_id: str, counterfactual_id: str, review: ReviewRequest
) -> ReviewView:
    """Store a reviewer's review of a counterfactual. Replaces their earlier review.

    Raises NotFound, and InvalidInput for an edit without an image.
    """
    edit = counterfactuals.find(session, owner, job_id, counterfactual_id)
    if edit.image_digest is None:
        raise InvalidInput(f"the check {edit.check!r} rejected this edit before rendering, so it has no image")
    key = {"counterfactual_id": counterfactual_id, "reviewer": reviewer}
    columns = {**review.model_dump(), "reviewed_at": utc_now()}
    upsert(session, Review, key, columns, job_id=job_id)
    return _view(session.get_one(Review, tuple(key.values()), populate_existing=True))


def review_of(session: Session, reviewer: str, counterfactual_id: str) -> ReviewView | None:
    """One reviewer's review of a counterfactual."""
    row = session.get(Review, (counterfactual_id, reviewer))
    return None if row is None else _view(row)


def listing(session: Session, owner: str, job_id: str, cursor: str | None, limit: int) -> ReviewsPage:
    """A page of a job's reviews, newest first. Raises NotFound."""
    jobs.find(session, owner, job_id)
    order: SortKey = {Review.reviewed_at: datetime, Review.counterfactual_id: str, Review.reviewer: str}
    query = select(Review).where(Review.job_id == job_id)
    rows, next_cursor = page_of(session, query, order, cursor, limit, descending=True)
    return ReviewsPage(reviews=[_view(row) for row in rows], next=next_cursor)


def _view(row: Review) -> ReviewView:
    return ReviewView(
        counterfactual=row.counterfactual_id,
        reviewer=row.reviewer,
        verdict=row.verdict,
        edit_shown=row.edit_shown,
        arm_shown=row.arm_shown,
        realism=row.realism,
        failure=row.failure,
        note=row.note,
        reviewed_at=row.reviewed_at,
    )
