"""Uploads are fetched from the store alone, once, and verified."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from evaluator_service.models_under_test.messages import Limits
from evaluator_service.models_under_test.quarantine import Quarantine
from evaluator_service.models_under_test.uploads import UploadedModels
from shared.batching import BatchMetrics, BatchPolicy, MicroBatcher
from shared.problems import DependencyFailed, InvalidInput, NotFound
from shared.schemas.evaluation import UploadedModel
from tests.support.archives import tarred

ORIGIN = "http://store:9000"


def test_uploads_are_fetched_once_from_the_store_alone_and_verified_by_digest(resnet: Path, tmp_path: Path) -> None:
    quarantine = Quarantine(str(tmp_path))
    data = tarred({path.name: path.read_bytes() for path in resnet.iterdir()})
    requested: list[str] = []

    def store(request: httpx.Request) -> httpx.Response:
        requested.append(request.url.path)
        answers: dict[str, Callable[[], httpx.Response]] = {
            "/gone": lambda: httpx.Response(404),
            "/expired": lambda: httpx.Response(403),
            "/elsewhere": lambda: httpx.Response(302, headers={"Location": "http://169.254.169.254/"}),
            "/link": lambda: httpx.Response(200, content=tarred({"config.json": b"{}", "../evil.py": b"x"})),
        }
        return answers.get(request.url.path, lambda: httpx.Response(200, content=data))()

    def upload(path: str, digest: str = hashlib.sha256(data).hexdigest(), origin: str = ORIGIN) -> UploadedModel:
        return UploadedModel(digest=digest, url=origin + path)

    def make_batcher(run: Any, max_batch: int, at_once: int = 1, on_stop: Any = None) -> MicroBatcher[Any, Any, Any]:
        metrics = BatchMetrics("test", CollectorRegistry())
        return MicroBatcher(run, BatchPolicy(max_batch, at_once=at_once), metrics, on_stop=on_stop)

    async def scenario() -> None:
        models = UploadedModels(ORIGIN, Limits(), quarantine, make_batcher, httpx.MockTransport(store))
        first, second = await asyncio.gather(
            *(models.examine(upload(f"/a?sign={sign}"), 64, math.inf) for sign in (1, 2))
        )
        async with models.using(upload("/b")) as third:
            assert first is second is third
        assert requested == ["/a"]
        first.stop()
        models.close()
        evil = hashlib.sha256(tarred({"config.json": b"{}", "../evil.py": b"x"})).hexdigest()
        refusals: list[tuple[UploadedModel, type[Exception]]] = [
            (upload("/gone", "0" * 64), NotFound),
            (upload("/expired", "1" * 64), DependencyFailed),
            (upload("/elsewhere", "2" * 64), DependencyFailed),
            (upload("/damaged", "3" * 64), DependencyFailed),
            (upload("/link", evil), InvalidInput),
            (upload("/a", "4" * 64, "http://store:9001"), InvalidInput),
            (upload("/a", "5" * 64, "file://"), InvalidInput),
            (upload("/a", "6" * 64, "http://store:9000@169.254.169.254"), InvalidInput),
            (upload("/a", "7" * 64, "https://store:9000"), InvalidInput),
        ]
        for refused, kind in refusals:
            with pytest.raises(kind):
                await models.examine(refused, 64, math.inf)
        with pytest.raises(InvalidInput, match="CONTRAFACT_MODEL_ORIGIN"):
            await UploadedModels("", Limits(), quarantine, make_batcher).examine(upload("/a"), 64, math.inf)

    asyncio.run(scenario())
