"""A worker over small services, and jobs for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from sqlalchemy import func, select

from gateway.database.sessions import Sessions
from gateway.database.tables import (
    LOCAL_OWNER,
    Counterfactual,
    Job,
    Owner,
    Prediction,
    RecordedCall,
    Report,
    SourceImage,
)
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.settings import Settings
from gateway.worker.worker import Worker
from shared.media.images import encode
from shared.media.storage import DirectoryStore
from shared.schemas.results import JobResults
from shared.schemas.service import SERVICES
from shared.service.celery_app import open_celery
from tests.support.job_counts import store_counts
from tests.support.job_methods import job_methods
from tests.support.small_services import CLASSES, SmallServices

METHODS: list[dict[str, object]] = [{"name": "dillema", "parameters": {"counterfactuals_per_image": 2, "steps": 2}}]
# A lease is long: nobody loses one because a processor is busy. What must expire is made to.
QUICK = Settings(lease_seconds=60, lease_renewal_seconds=0.3, sweep_seconds=0.3, service_wait_seconds=1.5)


class Site:
    """A worker over small services, and jobs for it."""

    def __init__(self, sessions: Sessions, store: DirectoryStore, small: SmallServices, url: str) -> None:
        self.sessions, self.store, self.small, self.url = sessions, store, small, url
        self.celery = open_celery("memory://localhost")
        self.clients: list[ModelServices] = []
        self.workers: list[Worker] = []

    def close(self) -> None:
        """Stop the threads of the workers, and close their clients."""
        for worker in self.workers:
            worker.stop()
        for client in self.clients:
            client.close()

    def worker(self, wait: float = QUICK.service_wait_seconds) -> Worker:
        """A worker that waits so many seconds for a busy service."""
        services = ModelServices(dict.fromkeys(SERVICES, self.url), deadline=120, wait=wait)
        self.clients.append(services)
        worker = Worker(QUICK, self.sessions, self.store, services, self.celery)
        self.workers.append(worker)
        return worker

    def add_job(
        self,
        job_id: str = "job",
        images: int = 3,
        models: tuple[str, ...] = ("m1", "m2"),
        seed: int = 0,
        methods: Sequence[dict[str, object]] = METHODS,
        pictures: int = 5,
        classes: Sequence[str] = CLASSES,
        size: tuple[int, int] = (12, 12),
    ) -> None:
        """`pictures` is the seed of the source images: jobs of the same one share them, and what was recorded.

        They are noise; `size` is their height and width.
        """
        with self.sessions.begin() as session:
            session.merge(Owner(id=LOCAL_OWNER, name="local"))
        shelf = ImageShelf(self.store, self.sessions, LOCAL_OWNER)
        noise = np.random.default_rng(pictures).integers(0, 255, (images, *size, 3)).astype(np.uint8)
        digests = [shelf.keep(encode(picture)) for picture in noise]
        shelf.save(set(digests))
        with self.sessions.begin() as session:
            session.add(
                Job(
                    id=job_id,
                    owner_id=LOCAL_OWNER,
                    task_description="name the vehicle",
                    classes=list(classes),
                    methods=job_methods(methods),
                    models=list(models),
                    profile="tiny",
                    seed=seed,
                )
            )
            session.flush()
            session.add_all(
                SourceImage(id=f"{job_id}-{n}", job_id=job_id, position=n, digest=digest, ground_truth="car")
                for n, digest in enumerate(digests)
            )
            store_counts(session, job_id)

    def state(self, job_id: str = "job") -> str:
        with self.sessions() as session:
            return session.get_one(Job, job_id).state

    def images(self, job_id: str = "job") -> list[SourceImage]:
        with self.sessions() as session:
            query = select(SourceImage).where(SourceImage.job_id == job_id).order_by(SourceImage.position)
            return list(session.scalars(query))

    def report(self, job_id: str = "job") -> str:
        """The page of the job's report."""
        with self.sessions() as session:
            return self.store.get(session.get_one(Report, job_id).object_key).decode()

    def metrics(self, job_id: str = "job") -> JobResults:
        """The figures of the job's report."""
        with self.sessions() as session:
            return JobResults.model_validate(session.get_one(Report, job_id).metrics)

    def recorded_calls(self) -> int:
        """The number of recorded calls of the model services."""
        with self.sessions() as session:
            return session.scalar(select(func.count()).select_from(RecordedCall)) or 0

    def results(self, job_id: str = "job") -> tuple[list[object], list[object]]:
        """Everything that a repetition must reproduce, without ids of the job's own."""
        c, p = Counterfactual, Prediction
        with self.sessions() as session:
            counterfactuals = session.execute(
                select(c.position, c.method, c.ordinal, c.seed, c.image_digest, c.accepted, c.check, c.new_caption)
                .where(c.job_id == job_id)
                .order_by(c.position, c.method, c.ordinal)
            ).all()
            predictions = session.execute(
                select(p.model, p.predicted, p.probability, p.detail, c.position, c.ordinal)
                .join(c, p.counterfactual_id == c.id, isouter=True)
                .where(p.job_id == job_id)
                .order_by(p.model, c.position, c.ordinal, p.probability)
            ).all()
        return [tuple(row) for row in counterfactuals], [tuple(row) for row in predictions]


class SlowReport:
    """Lets the first report of a site be written only once `go_on` is set; `writing` is set when it begins."""

    def __init__(self, site: Site) -> None:
        self.writing, self.go_on = threading.Event(), threading.Event()
        self._put = site.store.put
        site.store.put = self.put  # type: ignore[method-assign]

    def put(self, key: str, data: bytes) -> None:
        if key.startswith("reports/") and not self.writing.is_set():
            self.writing.set()
            self.go_on.wait(300)
        self._put(key, data)


def work_until(worker: Worker, condition: Callable[[], bool]) -> None:
    """Let the worker take steps until the condition holds."""

    def holds() -> bool:
        worker.step()
        return condition()

    wait_for(holds)


def wait_for(
    condition: Callable[[], bool],
    seconds: float = 600.0,
    beat: float = 0.05,
    explain: Callable[[], object] = lambda: "it did not happen in time",
) -> None:
    """Return once the condition holds; fails with what `explain` returns after `seconds`, which only a hang takes."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, explain()
        time.sleep(beat)
