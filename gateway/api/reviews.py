"""`/jobs/{job}/reviews` and `/own-images`: what people see in images, and the report built again with it."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import Cursor, Gateway, JobId, Limit, Owner, Reviewer, problems
from gateway.database.sessions import reading
from gateway.feedback import calibration, marks, reviews
from gateway.feedback.ratings import sync_job
from gateway.jobs import jobs
from shared.schemas.calibration import JobCalibration
from shared.schemas.jobs import Digest, JobDetail
from shared.schemas.own_images import MarkRequest, MarkView, OwnImagesView
from shared.schemas.reviews import ReviewRequest, ReviewsPage, ReviewView

router = APIRouter(tags=["reviews"])


@router.put("/jobs/{job}/reviews/{counterfactual}", responses=problems(s404="no such counterfactual"))
def review_counterfactual(
    job: JobId, counterfactual: str, review: ReviewRequest, gateway: Gateway, owner: Owner, reviewer: Reviewer
) -> ReviewView:
    """Review a counterfactual. Each key has one review of it: a new one replaces the old."""
    with gateway.sessions.begin() as session:
        return reviews.record(session, owner, reviewer, job, counterfactual, review)


@router.get("/jobs/{job}/reviews", responses=problems(s404="no such job"))
def list_reviews(job: JobId, gateway: Gateway, owner: Owner, cursor: Cursor = None, limit: Limit = 50) -> ReviewsPage:
    """All reviews of a job, newest first."""
    with reading(gateway.sessions) as session:
        return reviews.listing(session, owner, job, cursor, limit)


@router.get("/jobs/{job}/calibration", responses=problems(s404="no such job"))
def show_calibration(job: JobId, gateway: Gateway, owner: Owner) -> JobCalibration:
    """The errors of the checks by method and factor, from the reviews of a random sample, and thresholds fitted on it.

    The page `/jobs/{job}/review?sample=calibration` shows the sample.
    """
    with reading(gateway.sessions) as session:
        return calibration.calibration_of(session, owner, job)


@router.post("/jobs/{job}/report", status_code=202, responses=problems(s404="no such job", s409="the job is not done"))
def report_anew(job: JobId, gateway: Gateway, owner: Owner) -> JobDetail:
    """Rebuild the report of a finished job with the current reviews. Nothing is rendered or predicted."""
    with gateway.sessions.begin() as session:
        jobs.rebuild_report(session, owner, job)
        sync_job(session, job)
    gateway.wake()
    with reading(gateway.sessions) as session:
        return jobs.show(session, owner, job)


@router.get("/jobs/{job}/own-images", responses=problems(s404="no such job"))
def list_own_images(job: JobId, gateway: Gateway, owner: Owner) -> OwnImagesView:
    """The source images to mark by eye, for each value with findings, and all marks of them.

    The page `/jobs/{job}/review/own-images` shows one after the other.
    """
    with reading(gateway.sessions) as session:
        return marks.listing(session, owner, job)


@router.put("/jobs/{job}/own-images/{image}", responses=problems(s404="no such source image"))
def mark_own_image(
    job: JobId, image: Digest, request: MarkRequest, gateway: Gateway, owner: Owner, reviewer: Reviewer
) -> MarkView:
    """Say whether a source image shows the value of a finding. Each key has one mark per image and value.

    `POST /jobs/{job}/report` compares the findings again, with these marks.
    """
    with gateway.sessions.begin() as session:
        return marks.record(session, owner, reviewer, job, image, request)
