"""Prometheus gauges of waiting work, counted in the database at each scrape, at most every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError

from gateway.database.sessions import Sessions, reading
from gateway.database.table_base import SourceImageState
from gateway.database.tables import Job, SourceImage
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
                except (OperationalError, InterfaceError, TimeoutError):
                    self._counted = []
                self._counted_at = time.monotonic()
            yield from self._counted

    def _count(self) -> list[Metric]:
        jobs = GaugeMetricFamily("contrafact_jobs", "Jobs by state.", labels=["state"])
        images = GaugeMetricFamily(
            "contrafact_source_images", "Source images of running jobs by state.", labels=["state"]
        )
        by_state = select(SourceImage.state, func.count()).join(Job).where(Job.state == "running")
        with reading(self._sessions) as session:
            job_rows = session.execute(select(Job.state, func.count()).group_by(Job.state)).all()
            image_rows = session.execute(by_state.group_by(SourceImage.state)).all()
        for gauge, states, rows in ((jobs, JOB_STATES, job_rows), (images, IMAGE_STATES, image_rows)):
            number: dict[str, int] = {row[0]: row[1] for row in rows}
            for state in states:
                gauge.add_metric([state], number.get(state, 0))
        return [jobs, images]
