"""A model service that squares numbers. `create_app` serves a model that takes two seconds, for `uvicorn --factory`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

from fastapi import FastAPI
from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.service import WeightsInfo
from shared.service.batching import MicroBatcher
from shared.service.endpoints import Endpoint
from shared.service.model_service import LoadedModel, MakeBatcher, ModelService
from shared.service.settings import ServiceSettings

SECONDS = 2.0


class Count(Contract):
    """A number to square."""

    number: Annotated[int, Field(ge=0)]
    padding: str = ""


class Square(Contract):
    """Its square."""

    square: int


class Squaring(LoadedModel, Protocol):
    """A model that squares the numbers of its batcher."""

    @property
    def batcher(self) -> MicroBatcher[str, int, int]:
        """Where requests wait."""
        ...


SQUARES = Endpoint("evaluator_service", "/v1/squares", Count, Square, "checking")


class SlowSquares:
    """The model."""

    device = "cpu"
    weights = (WeightsInfo(role="squares", id="none", revision="1", dtype="float32", licence="none"),)

    def __init__(self, make_batcher: MakeBatcher) -> None:
        self.batcher: MicroBatcher[str, int, int] = make_batcher(self._run, 1)

    def _run(self, key: str, items: Sequence[int]) -> list[int]:
        time.sleep(SECONDS)
        return [item * item for item in items]


def square_service(load: Callable[[MakeBatcher], Squaring], settings: ServiceSettings) -> FastAPI:
    """A service over a model that squares."""
    service = ModelService("squares", "1", settings, load)

    @service.post(SQUARES)
    async def answer(request: Count, deadline: float) -> Square:
        return Square(square=await service.model.batcher.submit(request.number, key="", deadline=deadline))

    return service.app


def create_app() -> FastAPI:
    """The service over the slow model."""
    return square_service(SlowSquares, ServiceSettings())
