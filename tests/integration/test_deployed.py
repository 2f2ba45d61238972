"""As deployed: worker processes over a real Postgres and a real Redis, one of them killed in the middle of its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.database import Sessions
from gateway.messages import open_celery, wake_worker
from shared.storage import DirectoryStore
from tests.deployment import redis, redis_url, worker
from tests.integration.small_services import SmallServices, serve
from tests.integration.work_site import Site, wait_for


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_another_worker_takes_over_from_a_killed_one(sessions: Sessions, database_url: str, tmp_path: Path) -> None:
    small = SmallServices()
    broker = redis(tmp_path)
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        settings = {
            "CONTRAFACT_DATABASE_URL": database_url,
            "CONTRAFACT_BROKER_URL": redis_url(broker),
            "CONTRAFACT_OBJECT_STORE": f"directory:{tmp_path / 'objects'}",
            "CONTRAFACT_LEASE_SECONDS": "6",
            "CONTRAFACT_LEASE_RENEWAL_SECONDS": "0.5",
            "CONTRAFACT_SWEEP_SECONDS": "0.5",
            "CONTRAFACT_IMAGES_IN_FLIGHT": "4",
            **{f"CONTRAFACT_{name}_URL": url for name in ("CAPTION", "LLM", "DIFFUSION", "EVALUATOR")},
        }
        first, second = worker(tmp_path, "first", settings), worker(tmp_path, "second", settings)
        small.gate.clear()
        site.add_job(images=6)
        try:
            broker.start()
            broker.wait()
            wake_worker(open_celery(redis_url(broker)))
            first.start()
            wait_for(lambda: sum(image.state == "leased" for image in site.images()) == 4, seconds=600)
            first.kill()
            small.gate.set()
            second.start()
            wait_for(lambda: site.state() == "done", seconds=600)
            assert second.stop(120) == 0
        finally:
            for part in (first, second, broker):
                part.kill()
    images = site.images()
    assert [image.state for image in images] == ["done"] * 6
    assert sum(image.lost_leases for image in images) == 4
    assert sum(image.attempts for image in images) == 0
