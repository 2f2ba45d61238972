"""`/studies`: questions to people about the counterfactuals of a job, their links, and the results."""

from __future__ import annotations

import io
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from PIL import Image, ImageOps
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Gateway, JobId, Owner, problems
from gateway.context import Context, read_stored
from gateway.database.sessions import reading
from gateway.feedback import raters, ratings, studies
from shared.media.images import encode, to_array
from shared.media.storage import image_key
from shared.schemas.studies import (
    AnswersStored,
    InvitationsReply,
    InvitationsRequest,
    Side,
    StudiesListing,
    StudyRequest,
    StudyResults,
    StudyView,
)

Responses = dict[int | str, dict[str, Any]]  # as FastAPI takes them

router = APIRouter(tags=["studies"])
StudyId = Annotated[str, Path(max_length=64, description="a study's id")]
ItemId = Annotated[str, Path(max_length=64, description="an item's id, from items.csv")]
NO_STUDY = "no such study"
LOCATION = {"headers": {"Location": {"description": "its path", "schema": {"type": "string"}}}}
CSV = "text/csv"
CSV_REPLY: Responses = {200: {"content": {CSV: {"schema": {"type": "string"}}}, "description": "the file, in UTF-8"}}
PNG_REPLY: Responses = {
    200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}, "description": "the image"}
}
CSV_BODY = {"requestBody": {"required": True, "content": {CSV: {"schema": {"type": "string", "format": "binary"}}}}}


@router.post(
    "/jobs/{job}/studies",
    status_code=201,
    responses={201: LOCATION, **problems(s404="no such job", s409="the job is running")},
)
def create_study(job: JobId, request: StudyRequest, response: Response, gateway: Gateway, owner: Owner) -> StudyView:
    """Sample counterfactuals of a job for people to rate. The sample never changes."""
    with gateway.sessions.begin() as session:
        study = studies.create(session, owner, job, request)
    response.headers["Location"] = f"/studies/{study}"
    with reading(gateway.sessions) as session:
        return studies.show(session, owner, study)


@router.get("/jobs/{job}/studies", responses=problems(s404="no such job"))
def list_studies(job: JobId, gateway: Gateway, owner: Owner) -> StudiesListing:
    """The studies of a job, newest first."""
    with reading(gateway.sessions) as session:
        return studies.listing(session, owner, job)


@router.get("/studies/{study}", responses=problems(s404=NO_STUDY))
def show_study(study: StudyId, gateway: Gateway, owner: Owner) -> StudyView:
    """A study with its questions and its progress."""
    with reading(gateway.sessions) as session:
        return studies.show(session, owner, study)


@router.delete("/studies/{study}", status_code=204, responses=problems(s404=NO_STUDY))
def delete_study(study: StudyId, gateway: Gateway, owner: Owner) -> None:
    """Delete a study with its links and answers, and the reviews that its consensus gave."""
    with gateway.sessions.begin() as session:
        studies.remove(session, owner, study)


@router.post("/studies/{study}/invitations", status_code=201, responses=problems(s404=NO_STUDY))
def invite_raters(study: StudyId, request: InvitationsRequest, gateway: Gateway, owner: Owner) -> InvitationsReply:
    """Invite people. Each gets a link to a page of their own, which needs no login. Links are shown once."""
    with gateway.sessions.begin() as session:
        return raters.invite(session, owner, study, request.raters)


@router.get("/studies/{study}/results", responses=problems(s404=NO_STUDY))
def show_study_results(study: StudyId, gateway: Gateway, owner: Owner) -> StudyResults:
    """Raters and their control items, agreement, and the answers by question and method."""
    with reading(gateway.sessions) as session:
        return ratings.study_results(session, studies.find(session, owner, study))


@router.get("/studies/{study}/items.csv", response_class=Response, responses={**CSV_REPLY, **problems(s404=NO_STUDY)})
def download_items(study: StudyId, gateway: Gateway, owner: Owner) -> Response:
    """The items as CSV, for a crowd platform: ids, paths of the images, questions. It gives no answer away."""
    with reading(gateway.sessions) as session:
        return _csv(raters.items_csv(session, owner, study), f"study-{study}-items.csv")


@router.get(
    "/studies/{study}/items/{item}/{side}",
    response_class=Response,
    responses={**PNG_REPLY, **problems(s404="no such study or item")},
)
def download_item_image(study: StudyId, item: ItemId, side: Side, gateway: Gateway, owner: Owner) -> Response:
    """An image of an item as PNG, without provenance, which would name the method."""
    with reading(gateway.sessions) as session:
        view = raters.view(session, studies.find(session, owner, study), item)
    return item_image(gateway, view, side)


@router.get("/studies/{study}/answers.csv", response_class=Response, responses={**CSV_REPLY, **problems(s404=NO_STUDY)})
def download_answers(study: StudyId, gateway: Gateway, owner: Owner) -> Response:
    """All ratings as CSV, one line each."""
    with reading(gateway.sessions) as session:
        return _csv(raters.answers_csv(session, owner, study), f"study-{study}-answers.csv")


@router.put(
    "/studies/{study}/answers.csv",
    openapi_extra=CSV_BODY,
    responses=problems(s400="not CSV in UTF-8", s404=NO_STUDY, s413="too many bytes"),
)
async def upload_answers(study: StudyId, request: Request, gateway: Gateway, owner: Owner) -> AnswersStored:
    """Store ratings from a CSV file with the columns `rater`, `item` and one per question; all lines or none.

    A rater's earlier rating of an item is replaced. Further columns are ignored.
    """
    return await run_in_threadpool(_upload, gateway, owner, study, await request.body())


def item_image(context: Context, item: raters.ItemView, side: Side) -> Response:
    """An image of an item, without its digest or provenance.

    A changed image of another size is cropped and scaled to the original's: its size could tell what it is.
    """
    png = original = read_stored(context, image_key(item.original))
    if side == "changed":
        png = read_stored(context, image_key(item.changed))
        with Image.open(io.BytesIO(original)) as first, Image.open(io.BytesIO(png)) as second:
            if first.size != second.size:
                png = encode(to_array(ImageOps.fit(second, first.size)))
    return Response(png, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


def _upload(context: Context, owner: str, study: str, data: bytes) -> AnswersStored:
    with context.sessions.begin() as session:
        return raters.upload_answers(session, owner, study, data)


def _csv(text: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text, media_type=f"{CSV}; charset=utf-8", headers=headers)
