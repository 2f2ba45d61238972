"""What Prometheus reads at `/metrics` of gateway and worker: calls of the services, images, jobs, and the process.

What a process does it counts itself (`REGISTRY`, which gateway and worker share where they are one process); how much
work there is, is asked of the database when somebody looks, at most every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from gateway.database.sessions import DATABASE_AWAY, Sessions, reading
from gateway.database.table_base import SourceImageState
from gateway.database.tables import Job, SourceImage
from shared.asgi import SECONDS
from shared.schemas.jobs import JobState

FRESH_SECONDS = 10.0
JOB_STATES: tuple[str, ...] = get_args(JobState)
IMAGE_STATES: tuple[str, ...] = get_args(SourceImageState)

CALLS = Histogram(
    "contrafact_service_call_seconds",
    "One call of a model service over HTTP, waiting in its line included; `outcome` is the status, or `unreachable`.",
    ["service", "path", "outcome"],
    buckets=SECONDS,
)
RECORDED = Counter(
    "contrafact_recorded_calls",
    "Calls that methods asked for: `found` among the recorded ones, or `made`.",
    ["path", "outcome"],
)
STEPS = Histogram(
    "contrafact_step_seconds",
    "Work on one source image (load, call, apply) or one analysis, by how it ended.",
    ["stage", "outcome"],
    buckets=SECONDS,
)
MESSAGES = Counter(
    "contrafact_messages",
    "Celery messages: `sent`, or `lost` because of the broker; what a lost one was about is found later.",
    ["task", "outcome"],
)


class Work(Collector):
    """Jobs by state, and source images of running jobs by state, as the database has them."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._asking = threading.Lock()
        self._asked = -FRESH_SECONDS
        self._counted: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        """The gauges; without them, rather than without all other metrics, while the database is away."""
        with self._asking:
            if time.monotonic() - self._asked > FRESH_SECONDS:
                try:
                    self._counted = self._count()
                except DATABASE_AWAY:
                    self._counted = []
                self._asked = time.monotonic()
            yield from self._counted

    def _count(self) -> list[Metric]:
        jobs = GaugeMetricFamily("contrafact_jobs", "Jobs by state.", labels=["state"])
        images = GaugeMetricFamily(
            "contrafact_source_images", "Source images of running jobs by state.", labels=["state"]
        )
        by_state = select(SourceImage.state, func.count()).join(Job).where(Job.state == "running")
        with reading(self._sessions) as session:
            found_jobs = session.execute(select(Job.state, func.count()).group_by(Job.state)).all()
            found_images = session.execute(by_state.group_by(SourceImage.state)).all()
        for gauge, states, found in ((jobs, JOB_STATES, found_jobs), (images, IMAGE_STATES, found_images)):
            number: dict[str, int] = {row[0]: row[1] for row in found}
            for state in states:
                gauge.add_metric([state], number.get(state, 0))
        return [jobs, images]


def exposition(*registries: CollectorRegistry) -> bytes:
    """The text that Prometheus reads: these registries, then what the process counts."""
    return b"".join(generate_latest(registry) for registry in (*registries, REGISTRY))
