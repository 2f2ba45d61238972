"""Prometheus gauges of waiting work, counted in the database at each scrape, at most every few seconds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from gateway.database.columns import SourceImageState
from gateway.database.counts import total
from gateway.database.sessions import DATABASE_AWAY, Sessions, reading
from gateway.database.tables import Job, SourceImage
from gateway.queue.leases import LEASED
from shared.schemas.jobs import JobState

FRESH_SECONDS = 10.0
JOB_STATES: tuple[str, ...] = get_args(JobState)
IMAGE_STATES: tuple[str, ...] = get_args(SourceImageState)


class Work(Collector):
    """Jobs by state, and source images of running jobs by state."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._counted_at = -FRESH_SECONDS
        self._counted: list[Metric] = []

    def collect(self) -> Iterator[Metric]:
        """The gauges. While the database is away there are none, so that the other metrics stay available."""
        with self._lock:
            if time.monotonic() - self._counted_at > FRESH_SECONDS:
                try:
                    self._counted = self._count()
                except DATABASE_AWAY:
                    self._counted = []
                self._counted_at = time.monotonic()
            yield from self._counted

    def _count(self) -> list[Metric]:
        jobs = GaugeMetricFamily("contrafact_jobs", "Jobs by state.", labels=["state"])
        images = GaugeMetricFamily(
            "contrafact_source_images", "Source images of running jobs by state.", labels=["state"]
        )
        leases = select(func.count()).select_from(SourceImage).where(SourceImage.state == LEASED)
        by_state = select(Job.state, func.count())
        with reading(self._sessions) as session:
            job_rows = session.execute(by_state.where(Job.deleted_at.is_(None)).group_by(Job.state)).all()
            running = session.scalars(select(Job.counts).where(Job.state == "running")).all()
            leased = session.scalar(leases) or 0
        counts = total(Counter(of_job) for of_job in running)
        of_images = {**counts, "leased": leased}
        of_images["pending"] = max(0, counts["images"] - sum(of_images.get(state, 0) for state in IMAGE_STATES))
        of_jobs: dict[str, int] = {row[0]: row[1] for row in job_rows}
        for gauge, states, number in ((jobs, JOB_STATES, of_jobs), (images, IMAGE_STATES, of_images)):
            for state in states:
                gauge.add_metric([state], number.get(state, 0))
        return [jobs, images]
