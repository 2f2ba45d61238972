"""The framework of every model service: health, readiness, metrics, info, deadlines, one loaded model, its batchers.

A service's `app.py` gives a name, a `load` function and its endpoints (`torch_service` of `shared.service.devices` is
`ModelService` with the profile's section on the device):

    section = lambda profile: profile.caption
    service = torch_service(torch, transformers, "caption_service", CODE_REVISION, section, load, settings, turns)

    @service.post(Services.caption)
    async def captions(request: CaptionRequest, deadline: float) -> CaptionReply:
        return CaptionReply(captions=await service.model.caption(request, deadline))

    return service.app

`load` runs in a background thread after start, builds the model, warms it up and creates the batchers it needs; until
it returns, `/readyz` and every endpoint answer 503 and report the progress (`shared.service.load_progress`). If the
profile names a server, `/readyz` also checks it. When the model breaks, `/healthz` answers 503 and the process ends
(`shared.service.model_health`). This module does not import torch.

Whether a language or vision server that a profile names answers: llama.cpp's, vLLM's and TGI's `/health`.

The parts of a model service's OpenAPI document that FastAPI cannot see, because it does not parse the bodies.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import httpx
from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import Response

from shared import __version__
from shared.certificates import tls_fault, trusted
from shared.problems import MEDIA_TYPE, DeadlineExceeded, DeviceFailed, NotReady
from shared.profiles.weights import FROM_SERVER, Server
from shared.schemas.base import MAX_MESSAGE_BYTES, Contract, ProblemDocument
from shared.schemas.service import NO_RUNTIMES, GpuInfo, Runtimes, ServiceInfo, WeightsInfo
from shared.seeds import derive_digest
from shared.service import logging as json_logging
from shared.service import problem_replies, server_replies
from shared.service.asgi import AccessLog, BoundedRequests
from shared.service.batch_metrics import BatchMetrics
from shared.service.batching import BatchPolicy, MicroBatcher
from shared.service.device_errors import is_device_failure, is_out_of_memory
from shared.service.endpoints import HEALTHZ, INFO, METRICS, READYZ, Description, Endpoint, Reply
from shared.service.endpoints import Request as RequestBody
from shared.service.gpu import gpu_of
from shared.service.load_progress import LoadProgress
from shared.service.memory_limit import container_memory
from shared.service.memory_metrics import add_memory_metrics
from shared.service.model_health import ModelHealth, end_process_when_broken
from shared.service.settings import DEADLINE_HEADER, MAX_DEADLINE_SECONDS, ServiceSettings, parse, read_deadline
from shared.service.turns import START_TIME_HEADER, ComputeTurns, start_time_from, work_started

Schemas = dict[str, Any]  # JSON schema by name
SECONDS = 3.0  # shorter than the timeout of the service's own probes
RETRY_AFTER = 5.0
# Loaders patch module creation for the whole process while they run ("meta" parameters). Two loaders at a time would
# leave models without weights.
LOADING = threading.Lock()


logger = logging.getLogger("contrafact.service")
Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")
Handler = Callable[[RequestBody, float], Awaitable[Reply]]


class LoadedModel(Protocol):
    """What `load` returns: the object that the endpoints use, with what `/v1/info` reports about it."""

    @property
    def device(self) -> str:
        """The device that it runs on, such as `cpu` or `cuda:0`."""
        ...

    @property
    def weights(self) -> Sequence[WeightsInfo]:
        """All weights that a reply may depend on."""
        ...


Model = TypeVar("Model", bound=LoadedModel)


class MakeBatcher(Protocol):
    """Creates a `MicroBatcher` with the service's policy, metrics and compute turns."""

    def __call__(
        self,
        run: Callable[[Key, Sequence[Item]], Sequence[Result | Exception]],
        max_batch: int,
        at_once: int = 1,
        on_stop: Callable[[], None] | None = None,
        kind: Callable[[Key], Hashable] = lambda key: key,
    ) -> MicroBatcher[Key, Item, Result]:
        """`max_batch` is the profile's; the environment's `CONTRAFACT_MAX_BATCH` overrides it. See `MicroBatcher`."""
        ...


class ModelService(Generic[Model]):
    """A FastAPI app around one loaded model; see the module's docstring."""

    def __init__(
        self,
        name: str,
        code_revision: str,
        settings: ServiceSettings,
        load: Callable[[MakeBatcher], Model],
        turns: ComputeTurns | None = None,
        server: Server | None = None,
        runtimes: Runtimes = NO_RUNTIMES,
    ) -> None:
        """The service is ready only if the external `server` is; `runtimes` are those of `/v1/info`."""
        json_logging.configure()
        self.name = name
        self.registry = CollectorRegistry()
        self._code_revision = code_revision
        self._settings = settings
        self._load_model = load
        self._turns = turns
        self._server, self._runtimes = server, runtimes
        self._metrics = BatchMetrics(name, self.registry)
        add_memory_metrics(self.registry)
        self.registry.register(server_replies.UNUSABLE_REPLIES)
        self._health = ModelHealth(settings.max_batch_seconds)
        self._stopping = threading.Event()
        # Weak, because uploaded models come and go; the thread of a batcher in use keeps it alive.
        self._batchers: WeakSet[MicroBatcher[Any, Any, Any]] = WeakSet()
        self._model: Model | None = None
        self._gpu: GpuInfo | None = None
        self._failure: str | None = None
        self._progress = LoadProgress()
        self._request_schemas: Schemas = {"ProblemDocument": ProblemDocument.model_json_schema()}
        self.app = self._build_app()

    @property
    def model(self) -> Model:
        """The loaded model; raises NotReady until there is one, and once it is broken."""
        self._health.refuse_broken()
        if self._model is None:
            if self._failure:
                raise NotReady(f"the weights failed to load: {self._failure}", members={"failed": True})
            state = self._progress.state()
            raise NotReady(state.sentence, members=asdict(state), retry_after=2)
        return self._model

    def info(self) -> ServiceInfo:
        """The reply of `/v1/info`."""
        weights = list(self.model.weights)
        identity: list[str | int] = [self.name, self._code_revision, self.model.device.partition(":")[0]]
        if self._settings.deterministic:  # other batch shapes give other bits
            identity += [f"batch {size}" for size in sorted({batcher.policy.max_batch for batcher in self._batchers})]
        for item in weights:
            identity += [item.role, item.id, item.revision, item.dtype]
        if any(item.dtype == FROM_SERVER for item in weights):
            identity.append(f"replies {server_replies.REVISION}")
        identity += _library_versions()
        return ServiceInfo(
            service=self.name,
            profile=self._settings.profile,
            device=self.model.device,
            deterministic=self._settings.deterministic,
            revision=derive_digest(*identity).hex()[:32],
            weights=weights,
            version=__version__,
            gpu=self._gpu,
            runtimes=self._runtimes,
            host_gigabytes=None if (limit := container_memory()) is None else round(limit / 1e9, 2),
        )

    def post(
        self, endpoint: Endpoint[RequestBody, Reply]
    ) -> Callable[[Handler[RequestBody, Reply]], Handler[RequestBody, Reply]]:
        """Decorate `async (request, deadline) -> reply` as a POST endpoint.

        Body and reply are (de)serialised off the event loop. `deadline` is on the clock of `time.monotonic()`; when it
        passes, or the client leaves, the coroutine is cancelled.
        """

        def register(handler: Handler[RequestBody, Reply]) -> Handler[RequestBody, Reply]:
            async def respond(request: Request) -> Response:
                _ = self.model
                deadline = read_deadline(request)
                payload = await asyncio.to_thread(parse, endpoint.request, await request.body())
                with work_started(start_time_from(request.headers.get(START_TIME_HEADER))):
                    reply = await self._reply(handler, payload, deadline)
                return Response(await asyncio.to_thread(reply.model_dump_json), media_type="application/json")

            self.app.add_api_route(
                endpoint.path,
                respond,
                methods=["POST"],
                name=handler.__name__,
                description=endpoint.request.__doc__,
                responses={200: {"model": endpoint.reply}, **problem_responses(400, 404, 413, 422, 429, 502, 503, 504)},
                openapi_extra=describe_request(endpoint.request, self._request_schemas),
            )
            return handler

        return register

    async def _reply(self, handler: Handler[RequestBody, Reply], payload: RequestBody, deadline: float) -> Reply:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await handler(payload, deadline)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no reply before the deadline; raise {DEADLINE_HEADER}") from error
        except Exception as error:  # raised outside of a batch, for example while a model under test is loaded
            if not is_device_failure(error):
                raise
            self._health.report(f"the accelerator failed: {error}")
            raise DeviceFailed(f"the accelerator failed, so the service restarts: {error}") from error

    def get(
        self, description: Description[Reply]
    ) -> Callable[[Callable[[], Awaitable[Reply]]], Callable[[], Awaitable[Reply]]]:
        """Decorate `async () -> reply` as a GET endpoint."""
        return self.app.get(description.path, response_model=description.reply, description=description.about)

    def batcher(
        self,
        run: Callable[[Key, Sequence[Item]], Sequence[Result | Exception]],
        max_batch: int,
        at_once: int = 1,
        on_stop: Callable[[], None] | None = None,
        kind: Callable[[Key], Hashable] = lambda key: key,
    ) -> MicroBatcher[Key, Item, Result]:
        """See `MakeBatcher`."""
        settings = self._settings
        policy = BatchPolicy(
            settings.max_batch or max_batch,
            settings.max_wait_seconds,
            settings.capacity,
            settings.deterministic,
            at_once,
        )
        batcher = MicroBatcher(run, policy, self._metrics, self._turns, self._health, on_stop, kind)
        self._batchers.add(batcher)
        return batcher

    def _load(self) -> None:
        try:
            with LOADING, self._progress.receiving():
                model = self._load_model(self.batcher)
            self._gpu = gpu_of(model.device)
            self._model = model
        except BaseException as error:  # also a panic of a compiled library; reported by /readyz
            self._failure = f"{type(error).__name__}: {error}"
            logger.exception("%s failed to load", self.name)
            if is_device_failure(error):
                self._health.report(f"the accelerator failed while the weights were loaded: {error}")
            elif is_out_of_memory(error):  # another process may free it
                self._health.report(f"there is too little memory for the weights: {error}")
        else:
            logger.info("%s is ready", self.name, extra={"device": model.device})

    def _drain(self) -> None:
        self._stopping.set()
        for batcher in list(self._batchers):
            batcher.drain(self._settings.drain_seconds)
        self._model = None  # libraries may hold the app for as long as the process lives

    def _build_app(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            threading.Thread(target=self._load, name=f"load-{self.name}", daemon=True).start()
            watch = partial(end_process_when_broken, self._health, self.name, self._stopping)
            threading.Thread(target=watch, name=f"watch-{self.name}", daemon=True).start()
            yield
            await asyncio.to_thread(self._drain)

        app = FastAPI(title=self.name, version=__version__, lifespan=lifespan)
        problem_replies.install(app)
        app.add_middleware(BoundedRequests, max_bytes=MAX_MESSAGE_BYTES)
        app.add_middleware(AccessLog, service=self.name, registry=self.registry)
        not_yet = problem_responses(503)
        app.add_api_route(HEALTHZ, self._healthz, responses=not_yet, description="The model can compute.")
        app.add_api_route(READYZ, self._readyz, responses=not_yet, description="Weights are loaded, servers answer.")
        app.add_api_route(METRICS, self._prometheus, description="Prometheus metrics.", include_in_schema=False)
        app.add_api_route(INFO.path, self._info, response_model=INFO.reply, responses=not_yet, description=INFO.about)
        extend_openapi(app, self._request_schemas)
        return app

    async def _healthz(self) -> dict[str, str]:
        self._health.refuse_broken()
        return {"status": "alive"}

    async def _readyz(self) -> dict[str, str]:
        _ = self.model
        if self._server is not None:
            await refuse_unready(self._server)
        return {"status": "ready"}

    async def _prometheus(self) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    async def _info(self) -> ServiceInfo:
        return self.info()


def _library_versions() -> list[str]:
    """Versions of the installed libraries that compute replies; another version may round differently."""
    versions = []
    for name in ("torch", "transformers", "diffusers", "kornia", "llguidance"):
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return versions


async def refuse_unready(server: Server) -> None:
    """Ask the server's `/health`. Raises NotReady if nothing answers, or if it says that it is loading or broken (5xx).

    A server that has no such page (404) or requires a key for it (401) counts as ready.
    """
    root = server.url.rstrip("/").removesuffix("/v1")
    try:
        async with httpx.AsyncClient(timeout=SECONDS, verify=trusted(server.ca_file)) as client:
            reply = await client.get(f"{root}/health")
    except httpx.HTTPError as error:
        if fault := tls_fault(error):
            raise NotReady(f"the server at {server.url} cannot be used: {fault}", retry_after=RETRY_AFTER) from error
        raise NotReady(
            f"the server at {server.url} does not answer: start it, or correct the profile's `url` "
            f"({type(error).__name__})",
            retry_after=RETRY_AFTER,
        ) from error
    if reply.status_code >= 500:
        raise NotReady(
            f"the server at {server.url} is not ready (status {reply.status_code}): wait until it has loaded "
            f"{server.model}, or read its log",
            retry_after=RETRY_AFTER,
        )


def describe_request(body: type[Contract], schemas: Schemas) -> dict[str, Any]:
    """The description of an endpoint's body and deadline. Adds the body's schemas to `schemas`."""
    schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schema.pop("$defs", {})
    schemas[body.__name__] = schema
    reference = {"$ref": f"#/components/schemas/{body.__name__}"}
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_SECONDS}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "parameters": [{"name": DEADLINE_HEADER, "in": "header", "required": False, "schema": seconds}],
    }


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` for problem documents."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def extend_openapi(app: FastAPI, schemas: Schemas) -> None:
    """Add `schemas`, as they are when the document is read, to an app's OpenAPI document."""
    plain_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain_openapi()
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
