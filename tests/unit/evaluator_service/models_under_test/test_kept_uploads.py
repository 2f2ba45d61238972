"""Which uploaded models stay, what is tried before a job, what quarantines, and that NaN is no prediction."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluator_service.models_under_test.messages import Batch, Limits, Reply, receive, send
from evaluator_service.models_under_test.quarantine import MAX_MARKS, Quarantine
from evaluator_service.models_under_test.sandbox import ProcessKilled, Sandbox
from evaluator_service.models_under_test.uploads import CACHED, UploadedModels, guard
from shared.media.images import Pixels
from shared.problems import ModelStopped, NotFinite
from shared.schemas.evaluation import UploadedModel


class Loaded:
    """A model without a process."""

    def __init__(self) -> None:
        self.users, self.ended, self.sizes = 0, False, list[tuple[int, ...]]()

    async def outputs(self, images: Sequence[Pixels], deadline: float) -> list[Any]:
        self.sizes += [image.shape for image in images]
        return []

    def stop(self) -> None:
        self.ended = True


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Loaded]:
    """The models that were loaded, in order."""
    models: list[Loaded] = []

    def load(self: UploadedModels, upload: UploadedModel) -> Loaded:
        models.append(Loaded())
        return models[-1]

    monkeypatch.setattr(UploadedModels, "_fetch_and_load", load)
    return models


@pytest.fixture
def uploads(tmp_path: Path) -> Iterator[UploadedModels]:
    def no_batcher(*_: object, **__: object) -> Any:
        raise AssertionError

    models = UploadedModels("http://store", Limits(), Quarantine(str(tmp_path)), no_batcher)
    yield models
    models.close()


def upload(number: int) -> UploadedModel:
    return UploadedModel(digest=f"{number:064x}", url="http://store/model")


def test_the_latest_models_stay_and_those_in_use(uploads: UploadedModels, loaded: list[Loaded]) -> None:
    async def scenario() -> None:
        async with uploads.using(upload(0)):
            for number in range(1, CACHED + 2):
                async with uploads.using(upload(number)):
                    pass
            assert [model.ended for model in loaded] == [False, True, True, *[False] * (CACHED - 1)]
        async with uploads.using(upload(CACHED + 1)) as again:
            assert id(again) == id(loaded[CACHED + 1])

    asyncio.run(scenario())


def test_uploads_of_one_digest_are_loaded_once(uploads: UploadedModels, loaded: list[Loaded]) -> None:
    async def scenario() -> None:
        first, second = await asyncio.gather(*(uploads.examine(upload(0), 64, math.inf) for _ in range(2)))
        async with uploads.using(upload(0)) as third:
            assert first is second is third
        loaded[0].ended = True
        async with uploads.using(upload(0)) as fourth:
            assert id(fourth) == id(loaded[1])

    asyncio.run(scenario())


def test_a_model_is_tried_on_the_largest_image_of_a_job(uploads: UploadedModels, loaded: list[Loaded]) -> None:
    asyncio.run(uploads.examine(upload(0), 700, math.inf))
    assert loaded[0].sizes == [(700, 700, 3)]


def test_a_model_whose_process_is_killed_in_a_row_is_quarantined(tmp_path: Path) -> None:
    quarantine, digest = Quarantine(str(tmp_path)), "0" * 64
    for _ in range(MAX_MARKS):
        quarantine.refuse(digest)
        with pytest.raises(ProcessKilled), guard(quarantine, digest, quarantine.clear):
            raise ProcessKilled("killed")
    with pytest.raises(ModelStopped):
        quarantine.refuse(digest)


def test_an_image_that_gives_nan_or_infinity_has_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = socket.socketpair()
    with own, other:
        sandbox = Sandbox.__new__(Sandbox)  # without a process
        sandbox.kind, sandbox.classes, sandbox.limits, sandbox._connection = "classification", ["a", "b"], Limits(), own
        send(other, Reply(), [np.array([[0.25, 0.75], [np.nan, 0.5], [np.inf, 0.0]])])
        good, *bad = sandbox.run([np.zeros((4, 4, 3), np.uint8)] * 3)
        assert len(receive(other, Batch).sizes) == 3
        assert isinstance(good, np.ndarray)
        assert good.tolist() == [0.25, 0.75]
        assert [type(output) for output in bad] == [NotFinite, NotFinite]
