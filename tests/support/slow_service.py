"""A model service whose model takes two seconds to square a number, to be stopped meanwhile: `uvicorn --factory`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import FastAPI

from shared.batching import MicroBatcher
from shared.endpoints import Endpoint
from shared.schemas.base import Contract
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher, ModelService, ServiceSettings

SECONDS = 2.0


class Count(Contract):
    """A number to square."""

    number: int


class Square(Contract):
    """Its square."""

    square: int


class SlowSquares:
    """The model."""

    device = "cpu"
    weights = (WeightsInfo(role="squares", id="none", revision="1", dtype="float32", licence="none"),)

    def __init__(self, make_batcher: MakeBatcher) -> None:
        self.batcher: MicroBatcher[str, int, int] = make_batcher(self._run, 1)

    def _run(self, key: str, items: Sequence[int]) -> list[int]:
        time.sleep(SECONDS)
        return [item * item for item in items]


def create_app() -> FastAPI:
    """The service."""
    service = ModelService("slow_service", "1", ServiceSettings(), SlowSquares)

    @service.post(Endpoint("evaluator_service", "/v1/squares", Count, Square, "checking"))
    async def answer(request: Count, deadline: float) -> Square:
        return Square(square=await service.model.batcher.submit(request.number, key="", deadline=deadline))

    return service.app
