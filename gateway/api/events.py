"""`/jobs/{job}/events`: what happens in a job, as server-sent events that a client may leave and come back to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Gateway, JobId, Owner, problems
from gateway.context import Context
from gateway.database.events import events_after
from gateway.database.sessions import reading
from gateway.jobs import jobs
from shared.schemas.jobs import EventView

router = APIRouter(tags=["events"])
POLL_SECONDS = 0.5
PING_SECONDS = 15.0
BATCH = 200


@router.get(
    "/jobs/{job}/events",
    response_class=Response,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/EventView"}}}},
        204: {"description": "the job has ended and you have received every event; do not reconnect"},
        **problems(s404="no such job"),
    },
)
async def follow_job(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    last_event_id: Annotated[int, Header(ge=0, lt=2**31, description="continue after this event; 0 for all")] = 0,
) -> Response:
    """The job's events so far, then each as it happens; the stream ends with the job. `data` is an EventView."""
    events, over = await run_in_threadpool(_read, gateway, owner, job, last_event_id)
    if over and not events:
        return Response(status_code=204)
    return EventSourceResponse(_stream(gateway, owner, job, last_event_id), headers={"Cache-Control": "no-store"})


def _read(gateway: Context, owner: str, job: str, sequence: int) -> tuple[list[EventView], bool]:
    """The next events, and whether there will be no more after them."""
    with reading(gateway.sessions) as session:
        over = jobs.find(session, owner, job).state != "running"
        rows = events_after(session, job, sequence, BATCH)
    events = [EventView(sequence=e.sequence, kind=e.kind, payload=e.payload, at=e.created_at) for e in rows]
    return events, over and len(events) < BATCH


async def _stream(gateway: Context, owner: str, job: str, sequence: int) -> AsyncIterator[bytes]:
    spoken = time.monotonic()
    while True:
        events, over = await run_in_threadpool(_read, gateway, owner, job, sequence)
        for event in events:
            sequence = event.sequence
            yield format_sse_event(data_str=event.model_dump_json(), event=event.kind, id=str(sequence))
            spoken = time.monotonic()
        if over or gateway.stopping.is_set():  # a follower comes back, to another gateway
            return
        if len(events) < BATCH:
            await asyncio.sleep(POLL_SECONDS)
        if time.monotonic() - spoken > PING_SECONDS:
            yield KEEPALIVE_COMMENT
            spoken = time.monotonic()
