"""`/jobs/{job}/events`: the events of a job as server-sent events, which a client can resume.

The newest events of the jobs that clients follow. One task per process queries the database for all followers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Gateway, JobId, Owner, problems
from gateway.context import Context
from gateway.database.events import events_after
from gateway.database.sessions import DATABASE_AWAY, Sessions, reading
from gateway.database.tables import Event, Job
from gateway.jobs import jobs
from shared.chunks import chunks
from shared.schemas.jobs import EventView

POLL_SECONDS = 0.5
BATCH = 200
_JOBS_PER_STATEMENT = 500

logger = logging.getLogger("contrafact.gateway")


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event as it is sent, and its number."""

    sequence: int
    text: bytes


@dataclass(slots=True)
class News:
    """New events of a job, and whether there will be no more after them."""

    events: list[SentEvent]
    over: bool


@dataclass(eq=False, slots=True)
class FollowedJob:
    """A job with followers. `sequence` is the number of its newest event; once it `ended`, no event follows."""

    sequence: int
    followers: int = 0
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    recent: deque[SentEvent] = field(default_factory=lambda: deque(maxlen=BATCH))

    def after(self, sequence: int) -> list[SentEvent] | None:
        """The events after number `sequence`; None if they must be read from the database."""
        if sequence >= self.sequence:
            return []
        if not self.recent or self.recent[0].sequence > sequence + 1:
            return None
        return [event for event in self.recent if event.sequence > sequence]

    async def wait(self, seconds: float) -> bool:
        """Wait for something new. Returns False when nothing came within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def add(self, news: News) -> None:
        """Add new events and wake the followers."""
        self.recent.extend(news.events)
        if news.events:
            self.sequence = news.events[-1].sequence
        self.ended = self.ended or news.over
        self.changed.set()
        self.changed = asyncio.Event()


class EventFeed:
    """Queries the database twice a second for new events of all followed jobs. Belongs to one event loop."""

    def __init__(self, sessions: Sessions, stopping: threading.Event) -> None:
        self._sessions = sessions
        self._stopping = stopping
        self._jobs: dict[str, FollowedJob] = {}
        self._polling: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def following(self, job_id: str, sequence: int) -> AsyncIterator[FollowedJob]:
        """Follow a job until the block ends. The follower has its events up to number `sequence`."""
        job = self._jobs.setdefault(job_id, FollowedJob(sequence))
        job.followers += 1
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="events")
        try:
            yield job
        finally:
            job.followers -= 1
            if not job.followers and self._jobs.get(job_id) is job:
                del self._jobs[job_id]

    async def _poll(self) -> None:
        try:
            while self._jobs and not self._stopping.is_set():
                sequences = {job_id: job.sequence for job_id, job in self._jobs.items()}
                news = await run_in_threadpool(read_news, self._sessions, sequences)
                for job_id, new in news.items():
                    if job_id in self._jobs:
                        self._jobs[job_id].add(new)
                await asyncio.sleep(POLL_SECONDS)
        except DATABASE_AWAY as error:
            logger.warning("the database failed while jobs are followed; their streams end: %s", error)
        finally:  # also while stopping: clients reconnect later, or to another gateway
            for job in self._jobs.values():
                job.add(News([], over=True))
            self._jobs.clear()


def read_events(sessions: Sessions, job_id: str, sequence: int) -> list[SentEvent]:
    """At most `BATCH` events of a job after number `sequence`."""
    with reading(sessions) as session:
        return [_sent_event(event) for event in events_after(session, job_id, sequence, BATCH)]


def read_news(sessions: Sessions, sequences: Mapping[str, int]) -> dict[str, News]:
    """New events by job, at most the last `BATCH` after the number in `sequences`; also jobs that ended or are gone."""
    return dict(_news(sessions, sequences))


def _news(sessions: Sessions, sequences: Mapping[str, int]) -> Iterator[tuple[str, News]]:
    rows = select(Job.id, Job.events, Job.state).where(Job.deleted_at.is_(None))
    with reading(sessions) as session:
        for chunk in chunks(sorted(sequences), _JOBS_PER_STATEMENT):
            jobs = {row.id: row for row in session.execute(rows.where(Job.id.in_(chunk)))}
            for job_id in chunk:
                if job_id not in jobs:
                    yield job_id, News([], over=True)
                    continue
                row, events = jobs[job_id], []
                if row.events > sequences[job_id]:
                    first = max(sequences[job_id], row.events - BATCH)
                    events = [_sent_event(event) for event in events_after(session, job_id, first, BATCH)]
                if events or row.state != "running":
                    yield job_id, News(events, row.state != "running")


def _sent_event(event: Event) -> SentEvent:
    view = EventView(sequence=event.sequence, kind=event.kind, payload=event.payload, at=event.created_at)
    text = format_sse_event(data_str=view.model_dump_json(), event=event.kind, id=str(event.sequence))
    return SentEvent(event.sequence, text)


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
