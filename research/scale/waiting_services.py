"""The four model services without models: the real `ModelService` and batchers around a model that only waits.

    WAITING_SECONDS=2 uvicorn --factory research.scale.waiting_services:diffusion_service

A batch takes `WAITING_SECONDS`, whatever its size up to `CONTRAFACT_MAX_BATCH`, as on an accelerator that is not full.
`WAITING_REPLICAS` puts so many services, each with its own batcher, behind one URL; `/replicas/N` is one of
them. Requests go to the least busy one, or with `WAITING_BALANCE=connection` all those of a connection to the same one
at random, as kube-proxy does. Replies are arithmetic: pictures that differ by prompt, probabilities by picture, and
scores that pass every check (a picture's first pixel is its class).
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import numpy as np
from fastapi import FastAPI
from pydantic_settings import BaseSettings, SettingsConfigDict
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.media.images import decode, encode
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.diffusion import EditEvaluations, EditReply, EditRequest
from shared.schemas.evaluation import (
    DomainReply,
    DomainRequest,
    EmbedReply,
    EmbedRequest,
    ModelsReply,
    ModelUnderTestInfo,
    PredictReply,
    PredictRequest,
    StructureReply,
    StructureRequest,
)
from shared.schemas.service import WeightsInfo
from shared.service.endpoints import MODELS, Services
from shared.service.model_service import MakeBatcher, ModelService
from shared.service.settings import ServiceSettings

Balance = Literal["least busy", "connection"]
CLASSES = ["boat", "bus", "car"]
MODEL = "waiting-classifier"
_AXES = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
CAPTION = "A red car on a street. It is a sunny day."


class Waits(BaseSettings):
    """How long a batch takes, in seconds, and how many replicas there are."""

    model_config = SettingsConfigDict(env_prefix="WAITING_", extra="ignore")

    seconds: float = 0.0
    replicas: int = 1
    balance: Balance = "least busy"


class WaitingModel:
    """A model that takes its time and computes nothing."""

    device = "cpu"
    weights = (WeightsInfo(role="waits", id="none", revision="1", dtype="none", licence="none"),)

    def __init__(self, make_batcher: MakeBatcher) -> None:
        self._seconds = Waits().seconds
        self._batcher = make_batcher(self._run, 8)

    async def wait(self, items: int, deadline: float) -> None:
        """Queue so many items and wait until all of them have run."""
        await self._batcher.submit_all(list(range(items)), key="", deadline=deadline)

    def _run(self, key: str, items: Sequence[int]) -> Sequence[int]:
        time.sleep(self._seconds)
        return items


def caption_service() -> FastAPI:
    """Returns the same caption for every picture."""

    def make() -> ModelService[WaitingModel]:
        service = _service("caption_service")

        @service.post(Services.caption)
        async def captions(request: CaptionRequest, deadline: float) -> CaptionReply:
            await service.model.wait(len(request.images), deadline)
            return CaptionReply(captions=[CAPTION] * len(request.images))

        return service

    return _replicate(make)


def llm_service() -> FastAPI:
    """Only says who it is: method `shifts` asks no language model."""
    return _replicate(lambda: _service("llm_service"))


def diffusion_service() -> FastAPI:
    """Answers edits by the source's pixels, changed at random by the prompt."""

    def make() -> ModelService[WaitingModel]:
        service = _service("diffusion_service")

        @service.post(Services.edit)
        async def edits(request: EditRequest, deadline: float) -> EditReply:
            await service.model.wait(len(request.edits), deadline)
            return EditReply(
                reconstruction=request.source,
                images=[[_change(request.source, edit.prompt)] for edit in request.edits],
                attention=[],
                keep_mask=None,
                evaluations=EditEvaluations(inversion=request.steps, source=request.steps, edit=request.steps),
                caption=request.caption,
                prompts=[edit.prompt for edit in request.edits],
            )

        return service

    return _replicate(make)


def evaluator_service() -> FastAPI:
    """Predictions that depend on the pixels; scores that pass every check."""

    def make() -> ModelService[WaitingModel]:
        service = _service("evaluator_service")

        @service.post(Services.predict)
        async def predictions(request: PredictRequest, deadline: float) -> PredictReply:
            await service.model.wait(len(request.images), deadline)
            return PredictReply(classes=CLASSES, probabilities=[_probabilities(image.png) for image in request.images])

        @service.post(Services.embed)
        async def embeddings(request: EmbedRequest, deadline: float) -> EmbedReply:
            await service.model.wait(max(1, len(request.images)), deadline)
            images = [_class_of(image.png) for image in request.images]
            texts = [next((n for n, name in enumerate(CLASSES) if name in text), 0) for text in request.texts]
            return EmbedReply(images=[_AXES[n] for n in images], texts=[_AXES[n] for n in texts], logit_scale=10.0)

        @service.post(Services.domain)
        async def domain(request: DomainRequest, deadline: float) -> DomainReply:
            return DomainReply(log_odds=[-9.0] * len(request.images))

        @service.post(Services.structure)
        async def structure(request: StructureRequest, deadline: float) -> StructureReply:
            await service.model.wait(len(request.images), deadline)
            return StructureReply(agreements=[1.0] * len(request.images))

        service.get(MODELS)(_models)
        return service

    return _replicate(make)


def _service(name: str) -> ModelService[WaitingModel]:
    return ModelService(name, "1", ServiceSettings(), WaitingModel)


def _change(source: ImagePayload, prompt: str) -> ImagePayload:
    pixels = decode(source.png)
    noise = np.frombuffer(hashlib.shake_256(source.png + prompt.encode()).digest(pixels.size), np.uint8)
    changed = pixels ^ noise.reshape(pixels.shape)
    changed[0, 0] = pixels[0, 0]
    return ImagePayload(png=encode(changed))


def _class_of(png: bytes) -> int:
    return int(decode(png)[0, 0, 0]) % len(CLASSES)


def _probabilities(png: bytes) -> list[float]:
    weights = np.frombuffer(hashlib.sha256(png).digest()[: len(CLASSES)], np.uint8) + 1.0
    return [float(weight) for weight in weights / weights.sum()]


async def _models() -> ModelsReply:
    info = ModelUnderTestInfo(
        name=MODEL, kind="classification", classes=CLASSES, weights="none", revision="1", licence="Apache-2.0"
    )
    return ModelsReply(models=[info])


class Batches(Contract):
    """`GET /replicas`: batches that each replica has run, the items in them, and its seconds in the model."""

    batches: list[int]
    items: list[int]
    seconds: list[float]


def _replicate(make: Callable[[], ModelService[WaitingModel]]) -> FastAPI:
    waits = Waits()
    replicas = [make() for _ in range(waits.replicas)]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for replica in replicas:
                await stack.enter_async_context(replica.app.router.lifespan_context(replica.app))
            yield

    def counts(name: str) -> list[float]:
        label = {"service": replicas[0].name}
        return [replica.registry.get_sample_value(f"contrafact_{name}", label) or 0.0 for replica in replicas]

    def batches() -> Batches:
        return Batches(
            batches=[int(count) for count in counts("batch_size_count")],
            items=[int(count) for count in counts("batch_size_sum")],
            seconds=counts("batch_run_seconds_sum"),
        )

    app = FastAPI(lifespan=lifespan)
    app.get("/replicas")(batches)
    for number, replica in enumerate(replicas):
        app.mount(f"/replicas/{number}", replica.app)
    apps = [replica.app for replica in replicas]
    app.add_middleware(_Balanced, replicas=apps, by_connection=waits.balance == "connection")
    return app


class _Balanced:
    """Passes each request to a replica; what names one, and the app's own start and end, to the app itself."""

    def __init__(self, app: ASGIApp, replicas: Sequence[ASGIApp], by_connection: bool) -> None:
        self._app = app
        self._replicas = replicas
        self._by_connection = by_connection
        self._busy = [0] * len(replicas)
        self._chosen: dict[tuple[str, int], int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/replicas"):
            await self._app(scope, receive, send)
            return
        number = self._choose(tuple(scope["client"]))
        self._busy[number] += 1
        try:
            await self._replicas[number](scope, receive, send)
        finally:
            self._busy[number] -= 1

    def _choose(self, client: tuple[str, int]) -> int:
        if self._by_connection:
            return self._chosen.setdefault(client, random.randrange(len(self._replicas)))
        least = min(self._busy)
        return random.choice([number for number, busy in enumerate(self._busy) if busy == least])
