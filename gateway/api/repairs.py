"""`/repairs`: models under test trained on a job's accepted counterfactuals, and their results."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from gateway.api.dependencies import Cursor, Gateway, JobId, Limit, Owner, problems
from gateway.context import stored_pieces
from gateway.database.sessions import reading
from gateway.repairs import repairs
from shared.schemas.repairs import RepairRequest, RepairsPage, RepairView, TrainedArm

router = APIRouter(tags=["repairs"])
RepairId = Annotated[str, Path(max_length=64, description="the id that POST /jobs/{job}/repairs returned")]
TAR = "application/x-tar"


@router.post(
    "/jobs/{job}/repairs",
    status_code=202,
    responses={
        202: {"headers": {"Location": {"description": "the repair's path", "schema": {"type": "string"}}}},
        **problems(s404="no such job", s409="the job is running", s502="the object store failed", s503="not ready yet"),
    },
)
def begin_repair(job: JobId, request: RepairRequest, response: Response, gateway: Gateway, owner: Owner) -> RepairView:
    """Train a model under test on a finished job's accepted counterfactuals; evaluate it on other source images."""
    view = repairs.begin(gateway, owner, job, request)
    response.headers["Location"] = f"/repairs/{view.id}"
    return view


@router.get("/repairs")
def list_repairs(
    gateway: Gateway,
    owner: Owner,
    job: Annotated[str | None, Query(max_length=64, description="only repairs of this job")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> RepairsPage:
    """Your repairs, newest first."""
    with reading(gateway.sessions) as session:
        return repairs.listing(session, owner, job, cursor, limit)


@router.get("/repairs/{repair}", responses=problems(s404="no such repair"))
def show_repair(repair: RepairId, gateway: Gateway, owner: Owner) -> RepairView:
    """A repair: its progress and, when it is done, its result."""
    with reading(gateway.sessions) as session:
        return repairs.show(session, owner, repair)


@router.post("/repairs/{repair}/cancel", responses=problems(s404="no such repair", s502="the object store failed"))
def cancel_repair(repair: RepairId, gateway: Gateway, owner: Owner) -> RepairView:
    """Stop a repair. A repair that has ended is not changed."""
    with gateway.sessions.begin() as session:
        view = repairs.cancel(session, owner, repair)
    if view.state == "cancelled":
        repairs.forget_objects(gateway.store, [repair])
    return view


@router.delete(
    "/repairs/{repair}", status_code=204, responses=problems(s404="no such repair", s502="the object store failed")
)
def delete_repair(repair: RepairId, gateway: Gateway, owner: Owner) -> None:
    """Delete a repair with its models, running or not."""
    with gateway.sessions.begin() as session:
        repairs.remove(session, owner, repair)
    repairs.forget_objects(gateway.store, [repair])


@router.get(
    "/repairs/{repair}/model",
    response_class=Response,
    responses={
        200: {"content": {TAR: {"schema": {"type": "string", "format": "binary"}}}, "description": "the model"},
        **problems(s404="no such repair", s409="the repair is not done", s502="the object store failed"),
    },
)
def download_model(
    repair: RepairId,
    gateway: Gateway,
    owner: Owner,
    arm: Annotated[TrainedArm, Query(description="the repaired model, or one of the controls")] = "repaired",
) -> Response:
    """The repaired model as a tar: safetensors in Hub layout, preprocessing and model card. `POST /models` takes it."""
    with reading(gateway.sessions) as session:
        key = repairs.model_file(session, owner, repair, arm)
    headers = {
        "Content-Disposition": f'attachment; filename="{arm}-{repair}.tar"',
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(stored_pieces(gateway, key), media_type=TAR, headers=headers)
