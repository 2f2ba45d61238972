"""The client for asyncio: `Client`'s own methods in threads, over the connections of one event loop.

Every method is written once, in `Client`. A transport carries its requests to the loop: the method waits in a thread
while httpx's asynchronous transport talks to the gateway. Cancelling a call ends its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from contrafact.client import Client
from shared.certificates import trusted

CALLS_AT_ONCE = 32  # further calls wait for a thread
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_END = object()


@dataclass
class _Call:
    """A call of a method, and the requests that its thread waits for."""

    cancelled: bool = False
    requests: set[Future[Any]] = field(default_factory=set)

    def cancel(self) -> None:
        self.cancelled = True
        for request in list(self.requests):
            request.cancel()


_current: ContextVar[_Call] = ContextVar("call")


class AsyncClient:
    """A client of one gateway, whose methods are those of `Client` as coroutines and asynchronous iterators.

    Use it in the event loop in which it was made. `async with` closes it.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, ca_file: Path | str = "") -> None:
        """Call it inside a running event loop. `ca_file` as in `Client`."""
        self._loop = asyncio.get_running_loop()
        self._transport = httpx.AsyncHTTPTransport(trust_env=False, verify=trusted(ca_file))
        self._client = Client(base_url, api_key, transport=_LoopTransport(self._loop, self._transport))
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="contrafact-async")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._transport.aclose()

    async def run_in_thread(self, function: Callable[[], Result]) -> Result:
        """The result of a function that uses the client; a cancelled wait ends its requests."""
        call = _Call()
        context = copy_context()
        context.run(_current.set, call)
        try:
            return await self._loop.run_in_executor(self._threads, context.run, function)
        except asyncio.CancelledError:
            call.cancel()
            raise

    @property
    def client(self) -> Client:
        """The client whose methods run in threads; call them by `run_in_thread` only."""
        return self._client

    @staticmethod
    def _coroutine(
        method: Callable[Concatenate[Client, Parameters], Result],
    ) -> Callable[Concatenate[AsyncClient, Parameters], Coroutine[Any, Any, Result]]:
        @wraps(method)
        async def call(self: AsyncClient, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return await self.run_in_thread(partial(method, self.client, *args, **kwargs))

        return call

    @staticmethod
    def _iterator(
        method: Callable[Concatenate[Client, Parameters], Iterator[Result]],
    ) -> Callable[Concatenate[AsyncClient, Parameters], AsyncIterator[Result]]:
        @wraps(method)
        async def iterate(
            self: AsyncClient, /, *args: Parameters.args, **kwargs: Parameters.kwargs
        ) -> AsyncIterator[Result]:
            items = method(self.client, *args, **kwargs)
            while (item := await self.run_in_thread(partial(next, items, _END))) is not _END:
                yield item

        return iterate

    add_model = _coroutine(Client.add_model)
    add_models_to_job = _coroutine(Client.add_models_to_job)
    begin_repair = _coroutine(Client.begin_repair)
    calibration = _coroutine(Client.calibration)
    calibration_page_of = _coroutine(Client.calibration_page_of)
    cancel = _coroutine(Client.cancel)
    cancel_repair = _coroutine(Client.cancel_repair)
    compare = _coroutine(Client.compare)
    comparison_page_of = _coroutine(Client.comparison_page_of)
    confirm = _coroutine(Client.confirm)
    counterfactuals = _iterator(Client.counterfactuals)
    create = _coroutine(Client.create)
    create_from_archive = _coroutine(Client.create_from_archive)
    create_study = _coroutine(Client.create_study)
    create_suite = _coroutine(Client.create_suite)
    delete = _coroutine(Client.delete)
    delete_repair = _coroutine(Client.delete_repair)
    delete_study = _coroutine(Client.delete_study)
    delete_suite = _coroutine(Client.delete_suite)
    dose = _coroutine(Client.dose)
    events = _iterator(Client.events)
    export = _coroutine(Client.export)
    findings = _coroutine(Client.findings)
    follow = _iterator(Client.follow)
    gallery_of = _coroutine(Client.gallery_of)
    image = _coroutine(Client.image)
    invite_raters = _coroutine(Client.invite_raters)
    job = _coroutine(Client.job)
    jobs = _coroutine(Client.jobs)
    mark = _coroutine(Client.mark)
    methods = _coroutine(Client.methods)
    profiles = _coroutine(Client.profiles)
    models = _coroutine(Client.models)
    models_when_ready = _coroutine(Client.models_when_ready)
    own_images = _coroutine(Client.own_images)
    note_finding = _coroutine(Client.note_finding)
    plan = _coroutine(Client.plan)
    plan_from_archive = _coroutine(Client.plan_from_archive)
    plan_of = _coroutine(Client.plan_of)
    publish_suite = _coroutine(Client.publish_suite)
    page_of = _coroutine(Client.page_of)
    rating_page_of = _coroutine(Client.rating_page_of)
    remove_model = _coroutine(Client.remove_model)
    repair = _coroutine(Client.repair)
    repaired_model = _coroutine(Client.repaired_model)
    repairs = _coroutine(Client.repairs)
    report = _coroutine(Client.report)
    report_anew = _coroutine(Client.report_anew)
    results = _coroutine(Client.results)
    retry = _coroutine(Client.retry)
    review = _coroutine(Client.review)
    reviews = _iterator(Client.reviews)
    run = _coroutine(Client.run)
    run_results = _coroutine(Client.run_results)
    start_run = _coroutine(Client.start_run)
    studies = _coroutine(Client.studies)
    study = _coroutine(Client.study)
    study_answers = _coroutine(Client.study_answers)
    study_image = _coroutine(Client.study_image)
    study_items = _coroutine(Client.study_items)
    study_results = _coroutine(Client.study_results)
    suite = _coroutine(Client.suite)
    suite_counterfactuals = _iterator(Client.suite_counterfactuals)
    suites = _iterator(Client.suites)
    upload = _coroutine(Client.upload)
    upload_study_answers = _coroutine(Client.upload_study_answers)


class _LoopTransport(httpx.BaseTransport):
    """A transport for threads whose connections belong to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: httpx.AsyncBaseTransport) -> None:
        self._loop, self._transport = loop, transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = self.wait(partial(self._transport.handle_async_request, request))
        assert isinstance(reply.stream, httpx.AsyncByteStream)
        stream = _LoopStream(reply.stream, self)
        return httpx.Response(reply.status_code, headers=reply.headers, stream=stream, extensions=reply.extensions)

    def wait(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """The result of work in the loop, for the call of this thread. Raises CancelledError once it is cancelled."""

        async def complete() -> Result:
            return await work()

        call = _current.get()
        if call.cancelled:
            raise CancelledError
        future = asyncio.run_coroutine_threadsafe(complete(), self._loop)
        call.requests.add(future)
        try:
            return future.result()
        finally:
            call.requests.discard(future)

    def close_later(self, stream: httpx.AsyncByteStream) -> None:
        """Close a reply without waiting, so that a cancelled call and a dropped iterator can do it, too."""

        async def close() -> None:
            await stream.aclose()

        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(close(), self._loop)


class _LoopStream(httpx.SyncByteStream):
    """The body of a reply, read by a thread."""

    def __init__(self, stream: httpx.AsyncByteStream, transport: _LoopTransport) -> None:
        self._stream, self._transport = stream, transport

    def __iter__(self) -> Iterator[bytes]:
        parts = aiter(self._stream)
        while (part := self._transport.wait(partial(anext, parts, None))) is not None:
            yield part

    def close(self) -> None:
        self._transport.close_later(self._stream)
