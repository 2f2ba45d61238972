"""Worker processes over a real Postgres and Redis: workers and Redis are killed during the work."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.auth.keys import create_key
from gateway.database.sessions import Sessions
from gateway.operations.housekeeping import Graces, run_housekeeping
from gateway.queue.celery_tasks import wake_worker
from gateway.settings import Settings
from shared.media.storage import DirectoryStore
from shared.service.celery_app import open_celery
from tests.support.deployment import gateway, redis, redis_url, worker
from tests.support.gateway_under_test import picture
from tests.support.processes import Program, free_port
from tests.support.rows import let_time_pass
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import Site, wait_for


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
            let_time_pass(sessions, Settings().lease_seconds + 1)
            small.gate.set()
            second.start()
            wait_for(lambda: site.state() == "done", seconds=600)
            assert second.stop(120) == 0
        finally:
            for program in (first, second, broker):
                program.kill()
    images = site.images()
    assert [image.state for image in images] == ["done"] * 6
    assert sum(image.lost_leases for image in images) == 4
    assert sum(image.attempts for image in images) == 0


@contextmanager
def deployment(
    database_url: str, services: str, folder: Path, key: str, *more: str
) -> Iterator[tuple[Program, Program, httpx.Client, str]]:
    """A gateway, a worker and a Redis that may be killed: Redis, worker, a client with the key, where metrics are.

    `more`: the addresses of further gateways on the same database and store.
    """
    broker, port, url = redis(folder), free_port(), f"http://127.0.0.1:{free_port()}"
    settings = {
        "CONTRAFACT_DATABASE_URL": database_url,
        "CONTRAFACT_BROKER_URL": redis_url(broker),
        "CONTRAFACT_OBJECT_STORE": f"directory:{folder / 'objects'}",
        "CONTRAFACT_AUTHENTICATION": "true",
        "CONTRAFACT_SWEEP_SECONDS": "0.5",
        **{f"CONTRAFACT_{name}_URL": services for name in ("CAPTION", "LLM", "DIFFUSION", "EVALUATOR")},
    }
    working = worker(folder, "worker", settings)
    programs = [broker, gateway(folder, url, {**settings, "CONTRAFACT_METRICS_PORT": str(port)}), working]
    for number, other in enumerate(more):
        place = folder / f"gateway {number}"
        place.mkdir()
        programs.append(gateway(place, other, settings))
    headers = {"Authorization": f"Bearer {key}"}
    try:
        for program in programs:
            program.start()
        for program in programs:
            program.wait()
        with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            yield broker, working, client, f"http://127.0.0.1:{port}/metrics"
    finally:
        for program in programs:
            program.kill()


def post_job(client: httpx.Client, key: str | None = None) -> httpx.Response:
    files = [("images", (f"{shade}.png", picture(shade, size=12), "image/png")) for shade in (40, 90)]
    spec = b'{"task": "name the vehicle", "models": ["m1"]}'
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/jobs", files=[*files, ("spec", ("", spec, "application/json"))], headers=headers)


def lost_messages(metrics: str) -> float:
    exposed = httpx.get(metrics, timeout=30, trust_env=False).text
    lines = [line for line in exposed.splitlines() if line.startswith("contrafact_messages_total{")]
    return sum(float(line.split()[-1]) for line in lines if 'outcome="lost"' in line)


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_requests_are_taken_without_a_broker_and_done_when_it_is_back(
    sessions: Sessions, database_url: str, tmp_path: Path
) -> None:
    with sessions.begin() as session:
        key = create_key(session, "tester")
    small = SmallServices()
    with serve(small) as services, deployment(database_url, services, tmp_path, key) as programs:
        broker, working, client, metrics = programs

        def is_done(job: str) -> bool:
            # Celery 5.7 may end a worker that holds a message while Redis goes away (AttributeError in kombu's
            # `restore_unacked`); its container is then started again.
            if not working.alive:
                working.kill_rest()
                working.start()
            return str(client.get(f"/jobs/{job}").json()["state"]) == "done"

        broker.kill()
        posted = post_job(client)
        assert (posted.status_code, lost_messages(metrics)) == (202, 1), posted.text
        job = posted.json()["id"]
        assert posted.headers["Location"] == f"/jobs/{job}"
        assert client.get("/readyz").status_code == 200
        broker.start()
        broker.wait()
        wait_for(lambda: is_done(job), seconds=300)

        broker.kill()
        added = client.post(f"/jobs/{job}/models", json={"models": ["m2"]})
        assert (added.status_code, added.json()["state"]) == (202, "running"), added.text
        broker.start()
        broker.wait()
        wait_for(lambda: is_done(job), seconds=300)
        broker.kill()
        assert client.post(f"/jobs/{job}/report").status_code == 202
        assert lost_messages(metrics) == 3
        broker.start()
        broker.wait()
        wait_for(lambda: is_done(job), seconds=300)


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_two_gateways_work_on_one_database_and_store(sessions: Sessions, database_url: str, tmp_path: Path) -> None:
    """Each takes the same jobs and images, and deletes what the other has just taken, while a worker works on them."""
    other = f"http://127.0.0.1:{free_port()}"
    with sessions.begin() as session:
        key = create_key(session, "tester")
    image = picture(7, size=12)
    digest = hashlib.sha256(image).hexdigest()
    with (
        serve(SmallServices()) as services,
        deployment(database_url, services, tmp_path, key, other) as (_, _, first, _),
        httpx.Client(base_url=other, headers=first.headers, timeout=60, trust_env=False) as second,
        ThreadPoolExecutor(2) as pool,
    ):

        def turns(here: httpx.Client, there: httpx.Client) -> tuple[list[str], list[str]]:
            """The jobs that both gateways were sent under the same keys, and those of this one that are kept."""
            same, kept = [], []
            for turn in range(8):
                same.append(post_job(here, f"same {turn}").raise_for_status().json()["id"])
                here.put(f"/images/{digest}", content=image).raise_for_status()
                assert there.get(f"/images/{digest}").content == here.get(f"/images/{digest}").content
                own = post_job(here).raise_for_status().json()["id"]
                assert there.get(f"/jobs/{own}").status_code == 200
                if turn % 2:
                    assert there.delete(f"/jobs/{own}").status_code == 204
                    assert here.get(f"/jobs/{own}").status_code == 404
                    assert here.delete(f"/jobs/{own}").status_code == 404
                else:
                    kept.append(own)
            return same, kept

        sides = [pool.submit(turns, first, second), pool.submit(turns, second, first)]
        (same, kept), (same_there, kept_there) = (side.result() for side in sides)
        assert same == same_there
        jobs = {*same, *kept, *kept_there}
        assert len(jobs) == 16
        wait_for(lambda: all(second.get(f"/jobs/{job}").json()["state"] == "done" for job in jobs), 300)
        for client in (first, second):
            assert {job["id"] for job in client.get("/jobs?limit=100").json()["jobs"]} == jobs
        run_housekeeping(sessions, DirectoryStore(tmp_path / "objects"), Graces(0, 0))
        for job in jobs:
            rows = second.get(f"/jobs/{job}/results").raise_for_status().json()["counterfactuals"]
            assert rows
            used = {row[name] for row in rows for name in ("image", "null_image") if row[name]}
            used |= {row["source"]["image"] for row in rows}
            assert all(first.get(f"/images/{name}").status_code == 200 for name in used)
