"""`/jobs/{job}/comparison`: two models, two methods or two jobs on the same source images."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from gateway.api.dependencies import Cursor, Gateway, JobId, Owner, problems
from gateway.comparisons.comparisons import JobComparisons
from gateway.database.sessions import reading
from shared.schemas.comparisons import ComparisonChoice, JobComparison

router = APIRouter(tags=["results"])


def _comparisons(request: Request) -> JobComparisons:
    comparisons: JobComparisons = request.app.state.comparisons
    return comparisons


Comparisons = Annotated[JobComparisons, Depends(_comparisons)]


class ComparisonPage(ComparisonChoice):
    """A comparison, and which page of its disagreements."""

    cursor: Cursor = None
    limit: Annotated[int, Field(ge=1, le=100, description="disagreements of a page")] = 20


@router.get(
    "/jobs/{job}/comparison",
    responses=problems(s404="no such job", s409="a job is running"),
)
def show_comparison(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    comparisons: Comparisons,
    page: Annotated[ComparisonPage, Query()],
) -> JobComparison:
    """The difference of two effects in every cell with its interval, and the images on which they differ most.

    Compares two models or two methods of a job, two jobs over the same source images, or two runs of a suite. What
    cannot be compared is refused: jobs of another kind or with other ground truth, and adaptive jobs.
    """
    with reading(gateway.sessions) as session:
        return comparisons.compare(session, owner, job, page, page.cursor, page.limit)
