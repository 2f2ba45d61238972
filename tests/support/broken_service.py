"""Model services whose device breaks, to be run as processes: `uvicorn --factory tests.support.broken_service:NAME`.

A number is squared, but 13 breaks the device as the service's name says; `memory` lacks memory for every number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fastapi import FastAPI

from shared.schemas.base import Contract
from shared.schemas.service import WeightsInfo
from shared.service.batching import MicroBatcher
from shared.service.endpoints import Endpoint
from shared.service.model_service import MakeBatcher, ModelService
from shared.service.settings import ServiceSettings

UNLUCKY = 13
SETTINGS = ServiceSettings(max_batch_seconds=2.0)


class Number(Contract):
    """A number, or its square."""

    number: int


class Squares:
    """The model; `break_device` is called for the unlucky number."""

    device = "cuda:0"
    weights = (WeightsInfo(role="squares", id="none", revision="1", dtype="float32", licence="none"),)

    def __init__(self, make_batcher: MakeBatcher, break_device: Callable[[], None]) -> None:
        self._break_device = break_device
        self.batcher: MicroBatcher[str, int, int] = make_batcher(self._run, 4)

    def _run(self, key: str, items: Sequence[int]) -> list[int]:
        if UNLUCKY in items:
            self._break_device()
        return [item * item for item in items]


def raising() -> FastAPI:
    """What torch raises when a kernel fails; every later call fails, too."""

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    return _service(fail)


def hanging() -> FastAPI:
    """A kernel that never ends."""
    return _service(threading.Event().wait)  # type: ignore[arg-type]


def panicking() -> FastAPI:
    """What compiled libraries raise: no `Exception`."""

    class PanicException(BaseException):
        """As pyo3 names it."""

    def fail() -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    return _service(fail)


def memory() -> FastAPI:
    """An error that a restart does not mend."""

    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    return _service(fail)


def crowded() -> FastAPI:
    """There is no memory for the weights, for example because a dead process still has it."""
    return ModelService("broken_service", "1", SETTINGS, _load_in_vain).app


def _load_in_vain(make_batcher: MakeBatcher) -> Squares:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _service(break_device: Callable[[], None]) -> FastAPI:
    service = ModelService("broken_service", "1", SETTINGS, lambda make: Squares(make, break_device))

    @service.post(Endpoint("evaluator_service", "/v1/squares", Number, Number, "checking"))
    async def answer(request: Number, deadline: float) -> Number:
        return Number(number=await service.model.batcher.submit(request.number, key="", deadline=deadline))

    return service.app
