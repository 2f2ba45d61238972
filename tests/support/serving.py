"""A model service in this process, spoken to over its HTTP contract."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from shared.service.endpoints import Endpoint, Reply, Request

READY_SECONDS = 300.0  # only a hang takes so long


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `app`, once its weights are loaded; fails with the app's own reason where they do not load.

    It does not wait for the servers that a profile names: those of some tests are dead on purpose.
    """
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        give_up = time.monotonic() + READY_SECONDS
        while (reply := await client.get("/v1/info")).status_code != 200:
            assert not reply.json().get("failed"), reply.json()["detail"]
            assert time.monotonic() < give_up, "not ready in time"
            await asyncio.sleep(0.02)
        yield client


async def call(client: httpx.AsyncClient, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
    """The service's reply to a valid request; fails with the service's own reason where it refuses."""
    reply = await client.post(endpoint.path, content=request.model_dump_json())
    assert reply.status_code == 200, reply.text
    return endpoint.reply.model_validate_json(reply.content)
