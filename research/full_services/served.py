"""A model service in this process, called over HTTP, and the profile that it loads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from research.full_services.meter import ServiceMeter
from shared.service.endpoints import Endpoint, Reply, Request
from shared.service.settings import DEADLINE_HEADER, MAX_DEADLINE_SECONDS

POLL_SECONDS = 1.0
_ELSEWHERE = '{ url = "http://127.0.0.1:9/v1", model = "none", revision = "1", licence = "none", gigabytes = 1 }'
_SECTIONS = {
    "caption": f'[caption]\nengine = "openai"\nserver = {_ELSEWHERE}',
    "language": f'[language]\nengine = "openai"\nserver = {_ELSEWHERE}',
    "diffusion": '[diffusion]\nbase = { path = "none", licence = "none", gigabytes = 1 }\n'
    'controlnets.canny = { path = "none", licence = "none", gigabytes = 1 }',
    "evaluator": '[evaluator]\nscorer = { path = "none", licence = "none", gigabytes = 1 }',
}


def write_profile(folder: Path, **sections: str) -> Path:
    """Write `folder`/full-size.toml with the given sections (TOML); the others name weights that are never loaded."""
    path = folder / "full-size.toml"
    about = '[profile]\nname = "full-size"\ndescription = "public architectures, random weights"'
    path.write_text("\n".join([about, *(_SECTIONS | sections).values(), '[defaults]\nmethods = ["dillema"]']) + "\n")
    return path


def weights(folder: Path, name: str, dtype: str) -> str:
    """The profile's table of the weights in `folder`/`name`."""
    size = sum(file.stat().st_size for file in (folder / name).rglob("*.safetensors")) / 1e9
    return f'{{ path = "{name}", dtype = "{dtype}", licence = "none", gigabytes = {max(size, 0.001):.3f} }}'


class Client:
    """A ready service."""

    def __init__(self, http: httpx.AsyncClient, states: list[str]) -> None:
        self.states = states
        self._http = http

    async def ask(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """The reply to a request. Raises RuntimeError with the service's own reason."""
        response = await self._http.post(
            endpoint.path,
            content=request.model_dump_json(),
            headers={DEADLINE_HEADER: str(MAX_DEADLINE_SECONDS)},
        )
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(f"{endpoint.path}: {response.status_code} {response.text[:1_000]}")
        return endpoint.reply.model_validate_json(response.content)


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[Client]:
    """A client of `app` once its weights are loaded, with the replies of `/readyz` until then.

    Raises RuntimeError if they fail to load.
    """
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://service", timeout=MAX_DEADLINE_SECONDS
        ) as client,
    ):
        states: list[str] = []
        while (reply := await client.get("/readyz")).status_code != httpx.codes.OK:
            document = reply.json()
            if document.get("failed"):
                raise RuntimeError(document["detail"])
            table = document["loading"].partition(" (")[0]
            if table not in states:
                states.append(table)
                print(document["detail"], flush=True)
            await asyncio.sleep(POLL_SECONDS)
        yield Client(client, states)


Step = Callable[[Client], Awaitable[dict[str, Any]]]


async def measured_steps(meter: ServiceMeter, app: FastAPI, steps: Mapping[str, Step]) -> list[str]:
    """Load the service `app` and take the steps, each measured; returns the replies of `/readyz` while it loaded."""
    async with AsyncExitStack() as stack:
        with meter.measure("load and warm-up"):
            client = await stack.enter_async_context(serving(app))
        for name, step in steps.items():
            with meter.measure(name) as work:
                work.facts = await step(client)
            print(f"{name}: {work.cpu_seconds:.0f} CPU s, {work.gib_peak:.2f} GiB, {work.facts}", flush=True)
    return client.states
