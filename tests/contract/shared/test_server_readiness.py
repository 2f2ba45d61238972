"""`/readyz` of services whose profile names a server: ready only while that server is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Response

from caption_service.app import create_app as caption_app
from llm_service.app import create_app as language_app
from shared.service.settings import ServiceSettings
from tests.support.language_servers import listening
from tests.support.serving import serving
from tests.support.small_profile import write_profile

CreateApp = Callable[[ServiceSettings], FastAPI]


async def ready(create_app: CreateApp, profile: Path) -> tuple[int, str]:
    """Status and detail of `/readyz` once the service has loaded."""
    async with serving(create_app(ServiceSettings(profile=str(profile), device="cpu", threads=1))) as client:
        reply: httpx.Response = await client.get("/readyz")
        return reply.status_code, reply.json().get("detail", "")


def server_with_health(status: int) -> FastAPI:
    """A server whose `/health` has this status."""
    app = FastAPI()
    app.get("/health")(lambda: Response(status_code=status))
    return app


@pytest.mark.parametrize(
    ("create_app", "engine", "path"),
    [(language_app, "openai", "/v1"), (language_app, "tgi", ""), (caption_app, "openai", "/v1")],
)
def test_a_service_is_ready_while_its_server_is(tmp_path: Path, create_app: CreateApp, engine: str, path: str) -> None:
    for health, expected in ((200, 200), (503, 503), (500, 503), (404, 200), (401, 200)):
        with listening(server_with_health(health)) as url:
            profile = write_profile(tmp_path, language_engine=engine, url=url + path)
            status, detail = asyncio.run(ready(create_app, profile))
        assert status == expected, health
        if expected == 503:
            assert url in detail


@pytest.mark.parametrize("create_app", [language_app, caption_app])
def test_a_server_that_is_away_is_named(tmp_path: Path, create_app: CreateApp) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound but not listening: nobody else takes the port meanwhile
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        status, detail = asyncio.run(ready(create_app, write_profile(tmp_path, url=url)))
    assert status == 503
    assert url in detail
