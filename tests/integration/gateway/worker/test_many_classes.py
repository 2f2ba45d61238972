"""A job with 1,000 classes and the real scorer: it finishes, and class prompts are recorded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from evaluator_service.app import create_app
from gateway.database.sessions import Sessions
from gateway.database.tables import RecordedCall
from gateway.model_services.clients import ModelServices
from gateway.worker.worker import Worker
from shared.media.storage import DirectoryStore
from shared.schemas.service import SERVICES
from shared.service.celery_app import open_celery
from shared.service.settings import ServiceSettings
from tests.support.databases import ON_SQLITE
from tests.support.listening import listen
from tests.support.small_evaluator import write_scorer
from tests.support.small_profile import write_profile
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import QUICK, Site, wait_for

CLASSES = ["car", *(f"thing number {number}" for number in range(999))]
SHIFTS: list[dict[str, object]] = [
    {"name": "shifts", "parameters": {"shifts": ["at night", "in the snow"], "steps": 2}}
]


@dataclass
class Workplace:
    """A site, and a worker whose evaluator is the real service."""

    site: Site
    worker: Worker


@pytest.fixture
def workplace(sessions: Sessions, tmp_path: Path) -> Iterator[Workplace]:
    write_scorer(tmp_path / "scorer")
    settings = ServiceSettings(profile=str(write_profile(tmp_path)), device="cpu", threads=1)
    small = SmallServices()
    with listen(create_app(settings)) as evaluator, serve(small) as url:
        wait_for(lambda: httpx.get(f"{evaluator}/readyz", trust_env=False).status_code == 200)
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        urls = {**dict.fromkeys(SERVICES, url), "evaluator_service": evaluator}
        services = ModelServices(urls, deadline=120, wait=QUICK.service_wait_seconds)
        yield Workplace(site, Worker(QUICK, sessions, site.store, services, open_celery("memory://localhost")))
        services.close()


@pytest.mark.slow
@ON_SQLITE
def test_a_job_with_a_thousand_classes_ends_and_records_its_prompts_once(workplace: Workplace) -> None:
    site = workplace.site
    site.add_job(images=3, models=(), methods=SHIFTS, classes=CLASSES)
    workplace.worker.step()
    assert [image.state for image in site.images()] == ["done"] * 3, [image.failure for image in site.images()]
    with site.sessions() as session:
        embedded = session.scalars(select(RecordedCall).where(RecordedCall.endpoint == "/v1/embeddings")).all()
    with_images = [row for row in embedded if row.reply["images"]]
    assert len(with_images) == 3 + 3, "the checks, and the realism of a counterfactual of each image"
    assert len(embedded) - len(with_images) == 4, "1,000 prompts in four messages, for all images together"
    assert sum(len(str(row.reply)) for row in embedded) < 30_000
