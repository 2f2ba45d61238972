"""A model service in this process, spoken to over its HTTP contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `app`, once its weights are loaded; fails with the app's own reason where they do not load."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
    ):
        for _ in range(600):
            reply = await client.get("/readyz")
            if reply.status_code == 200:
                break
            assert not reply.json().get("failed"), reply.json()["detail"]
            await asyncio.sleep(0.1)
        assert reply.status_code == 200, "not ready after a minute"
        yield client
