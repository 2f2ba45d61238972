"""The client for asyncio: every method of the client, over a real gateway."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrafact import AsyncClient, Client, JobRequest, ManifestImage, Problem
from contrafact.async_client import CALLS_AT_ONCE
from contrafact.client import _ignore as no_progress  # the default that both share
from shared.schemas.jobs import JobDetail
from tests.support.gateway_under_test import picture, serve_gateway


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway."""
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        yield str(served.client.base_url)


def public_methods(cls: type) -> dict[str, inspect.Signature]:
    functions = inspect.getmembers(cls, inspect.isfunction)
    return {name: inspect.signature(function) for name, function in functions if not name.startswith("_")}


def test_it_has_every_method_of_the_client_with_its_arguments() -> None:
    asynchronous = public_methods(AsyncClient)
    asynchronous.pop("run_in_thread")
    expected = public_methods(Client)
    assert asynchronous.keys() == expected.keys()
    for name, signature in expected.items():
        assert list(asynchronous[name].parameters) == list(signature.parameters), name
    assert no_progress in {parameter.default for parameter in asynchronous["add_model"].parameters.values()}


async def start_job(client: AsyncClient, shade: int) -> JobDetail:
    digest = await client.upload(picture(shade))
    image = ManifestImage(digest=digest, label="car", name=f"{shade}.png")
    return await client.create(JobRequest(task_description="classify the vehicle", images=[image]))


def test_jobs_are_started_and_read_at_the_same_time(url: str) -> None:
    async def run() -> list[str]:
        async with AsyncClient(url) as client:
            jobs = await asyncio.gather(*(start_job(client, shade) for shade in range(5)))
            details = await asyncio.gather(*(client.job(job.id) for job in jobs))
            rows = [view async for view in client.counterfactuals(jobs[0].id, {})]
            assert rows == []
            return [detail.state for detail in details]

    assert asyncio.run(run()) == ["running"] * 5


def test_a_problem_is_raised_as_by_the_client(url: str) -> None:
    async def run() -> None:
        async with AsyncClient(url) as client:
            await client.job("0" * 32)

    with pytest.raises(Problem) as raised:
        asyncio.run(run())
    assert raised.value.status == 404


def test_an_export_is_streamed(url: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncClient(url) as client:
            job = await start_job(client, 77)
            await client.cancel(job.id)
            with (tmp_path / "export.tar").open("wb") as file:
                await client.export(job.id, [("verdict", "any")], file)

    asyncio.run(run())
    assert (tmp_path / "export.tar").stat().st_size > 0


def test_cancelled_calls_end_their_requests_and_leave_their_threads(url: str) -> None:
    """The events of a running job do not end by themselves; a call finds a thread once the readers' are free."""

    async def run() -> str:
        async with AsyncClient(url) as client:
            job = await start_job(client, 99)
            readers = [Reader(client, job.id) for _ in range(CALLS_AT_ONCE)]
            tasks = [asyncio.create_task(reader.read()) for reader in readers]
            for reader in readers:
                await asyncio.wait_for(reader.started.wait(), 300)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)
            return (await asyncio.wait_for(client.job(job.id), 300)).state

    assert asyncio.run(run()) == "running"


class Reader:
    """Reads the events of a job until it is cancelled; `started` once the first has arrived."""

    def __init__(self, client: AsyncClient, job: str) -> None:
        self.started = asyncio.Event()
        self._events = client.events(job)

    async def read(self) -> None:
        async for _ in self._events:
            self.started.set()
