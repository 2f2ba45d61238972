"""A site whose services answer wrongly for a while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import Response
from sqlalchemy import update

from gateway.database.sessions import Sessions
from gateway.database.tables import SourceImage
from gateway.model_services.clients import ModelServices
from gateway.settings import Settings
from gateway.worker.worker import Worker
from shared.media.storage import DirectoryStore
from shared.schemas.service import SERVICES
from tests.support.small_services import SmallServices
from tests.support.work_site import Site, wait_for

HASTY = Settings(
    lease_seconds=60, lease_renewal_seconds=0.3, sweep_seconds=0.3, pause_seconds=0.05, max_lost_leases=4,
)  # fmt: skip
Answer = Callable[[bytes], Response | None]


class Day:
    """A site whose services can be made to answer something else: `answer` sees each request's body."""

    def __init__(self, sessions: Sessions, directory: Path, small: SmallServices, url: str) -> None:
        self.site = Site(sessions, DirectoryStore(directory / "objects"), small, url)
        self.answer: Answer = lambda body: None

    def worker(self, deadline: float = 120.0, pause: float = 0.05) -> Worker:
        services = ModelServices(dict.fromkeys(SERVICES, self.site.url), deadline=deadline, wait=1.5)
        self.site.clients.append(services)
        settings = HASTY.model_copy(update={"pause_seconds": pause})
        worker = Worker(settings, self.site.sessions, self.site.store, services, self.site.celery)
        self.site.workers.append(worker)
        return worker

    def resume(self) -> None:
        """As if the pauses after failures were over."""
        with self.site.sessions.begin() as session:
            session.execute(update(SourceImage).values(not_before=None))

    def until_done(self, worker: Worker, state: str = "done") -> list[SourceImage]:
        def over() -> bool:
            worker.step()
            return self.site.state() == state

        wait_for(over)
        return self.site.images()
