"""One request id from the user to the last service: in headers, messages, rows and log lines."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import httpx
import pytest
from fastapi import Request, Response

from embedded.run import CeleryThread, run_embedded
from gateway.queue.celery_tasks import wake_worker
from gateway.worker.worker import Worker, register
from shared.problems import InvalidInput
from shared.schemas.service import SERVICES
from shared.service.celery_app import open_celery
from shared.service.logging import bound, request_id
from shared.service.model_service import ModelService
from shared.service.settings import ServiceSettings
from tests.support.gateway_under_test import picture
from tests.support.http_jobs import finished
from tests.support.log_lines import Nothing
from tests.support.serving import serving
from tests.support.small_services import SmallServices, serve


@pytest.mark.slow
def test_it_travels_from_the_gateway_to_the_services_and_into_the_log(tmp_path: Path) -> None:
    small = SmallServices()
    requests: set[tuple[str, str | None]] = set()

    @small.app.middleware("http")
    async def hear(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        requests.add((request.url.path, request.headers.get("X-Request-ID")))
        return await answer(request)

    small.troubles = [InvalidInput("not this time")]
    with (
        serve(small) as url,
        run_embedded(tmp_path, service_urls=dict.fromkeys(SERVICES, url)) as system,
        httpx.Client(base_url=system.base_url, timeout=120) as client,
    ):
        mine = {"X-Request-ID": "mine-1"}
        spec = '{"task": "name the vehicle", "design": "free"}'
        created = client.post("/jobs", files={"images": picture(1)}, data={"spec": spec}, headers=mine)
        assert (created.status_code, created.headers["X-Request-ID"]) == (202, "mine-1")
        address = created.headers["Location"]
        finished(client, address)
        assert client.get("/jobs", headers={"X-Request-ID": "a b\tc"}).headers["X-Request-ID"] != "a b\tc"
    paths = {path for path, name in requests if name == "mine-1"}
    assert {"/v1/captions", "/v1/generate", "/v1/renderings", "/v1/predictions"} <= paths
    lines = [json.loads(line) for line in (tmp_path / "contrafact.log").read_text().splitlines()]
    failed = [line for line in lines if line["logger"] == "contrafact.worker" and "traceback" in line]
    assert [(line["request_id"], line["job"]) for line in failed] == [("mine-1", created.json()["id"])]
    assert any(line["message"] == "POST /jobs" and line["request_id"] == "mine-1" for line in lines)
    assert all(line["request_id"] for line in lines if line["logger"] == "contrafact.http")


def test_the_message_carries_it() -> None:
    request_ids: list[str] = []
    rung = threading.Event()

    class Bell:
        """Hears who rang."""

        def step(self) -> None:
            request_ids.append(request_id())
            rung.set()

        def start(self) -> None:
            """Nothing to begin."""

        def stop(self) -> None:
            """Nothing to end."""

    celery = open_celery("memory://localhost")
    celery.conf.task_default_queue = "bells"  # the process may hold messages that nobody took
    register(celery, cast(Worker, Bell()))
    thread = CeleryThread(celery, 1)
    try:
        with bound(request_id="mine-2"):
            wake_worker(celery)
        assert rung.wait(120)
    finally:
        thread.stop()
    assert request_ids == ["mine-2"]


def test_a_model_service_logs_and_answers_it(log: io.StringIO) -> None:
    async def ask() -> httpx.Response:
        service = ModelService("nothing", "1", ServiceSettings(), Nothing)
        async with serving(service.app) as client:
            return await client.get("/v1/info", headers={"X-Request-ID": "mine-3"})

    assert asyncio.run(ask()).headers["X-Request-ID"] == "mine-3"
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (mine,) = [line for line in lines if line["message"] == "GET /v1/info" and line["request_id"] == "mine-3"]
    assert (mine["service"], mine["request_id"], mine["status"]) == ("nothing", "mine-3", 200)
