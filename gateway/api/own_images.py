"""`/jobs/{job}/own-images`: what people see in the source images that corroborate findings."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import Gateway, JobId, Owner, Reviewer, problems
from gateway.database.sessions import reading
from gateway.reviews import own_images
from shared.schemas.jobs import Digest
from shared.schemas.own_images import MarkRequest, MarkView, OwnImagesView

router = APIRouter(tags=["reviews"])


@router.get("/jobs/{job}/own-images", responses=problems(s404="no such job"))
def list_own_images(job: JobId, gateway: Gateway, owner: Owner) -> OwnImagesView:
    """The source images to mark by eye, for each value with findings, and all marks of them.

    The page `/jobs/{job}/review/own-images` shows one after the other.
    """
    with reading(gateway.sessions) as session:
        return own_images.listing(session, owner, job)


@router.put("/jobs/{job}/own-images/{image}", responses=problems(s404="no such source image"))
def mark_own_image(
    job: JobId, image: Digest, request: MarkRequest, gateway: Gateway, owner: Owner, reviewer: Reviewer
) -> MarkView:
    """Say whether a source image shows the value of a finding. Each key has one mark per image and value.

    `POST /jobs/{job}/report` compares the findings again, with these marks.
    """
    with gateway.sessions.begin() as session:
        return own_images.record(session, owner, reviewer, job, image, request)
