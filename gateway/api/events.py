"""`/jobs/{job}/events`: the events of a job as server-sent events, which a client can resume."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Gateway, JobId, Owner, problems
from gateway.api.event_feed import EventFeed, News, SentEvent, read_events
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.jobs import jobs

router = APIRouter(tags=["events"])
PING_SECONDS = 15.0


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
    request: Request,
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    last_event_id: Annotated[int, Header(ge=0, lt=2**31, description="continue after this event; 0 for all")] = 0,
) -> Response:
    """The job's events so far, then each as it happens; the stream ends with the job. `data` is an EventView."""
    first_events = await run_in_threadpool(_first_events, gateway, owner, job, last_event_id)
    if first_events.over and not first_events.events:
        return Response(status_code=204)
    feed: EventFeed = request.app.state.event_feed
    return EventSourceResponse(
        _stream(gateway, feed, job, last_event_id, first_events.events), headers={"Cache-Control": "no-store"}
    )


def _first_events(gateway: Context, owner: str, job_id: str, sequence: int) -> News:
    """The next events, and whether the job is over. Raises NotFound."""
    with reading(gateway.sessions) as session:
        over = jobs.find(session, owner, job_id).state != "running"
    return News(read_events(gateway.sessions, job_id, sequence), over)


async def _stream(
    gateway: Context, feed: EventFeed, job_id: str, sequence: int, events: list[SentEvent]
) -> AsyncIterator[bytes]:
    newest = events[-1].sequence if events else sequence
    async with feed.following(job_id, newest) as job:
        sent_at = time.monotonic()
        while True:
            for event in events:
                sequence = event.sequence
                yield event.text
                sent_at = time.monotonic()
            news = job.after(sequence)
            events = (
                news if news is not None else await run_in_threadpool(read_events, gateway.sessions, job_id, sequence)
            )
            if events:
                continue
            if job.ended:
                return
            if not await job.wait(max(0.0, sent_at + PING_SECONDS - time.monotonic())):
                yield KEEPALIVE_COMMENT
                sent_at = time.monotonic()
