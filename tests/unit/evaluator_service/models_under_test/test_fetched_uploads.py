"""Uploads are fetched from the store alone, once, and verified."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from evaluator_service.models_under_test.messages import Limits
from evaluator_service.models_under_test.quarantine import Quarantine
from evaluator_service.models_under_test.uploads import UploadedModels
from shared.problems import DependencyFailed, InvalidInput, NotFound
from shared.schemas.evaluation import UploadedModel
from shared.service.batch_metrics import BatchMetrics
from shared.service.batching import BatchPolicy, MicroBatcher
from tests.support.archives import tarred

ORIGIN = "http://store:9000"


EVIL = tarred({"config.json": b"{}", "../evil.py": b"x"})


class Store:
    """An object store that holds one model under every path, except for a few paths that misbehave."""

    def __init__(self, resnet: Path) -> None:
        self.package = tarred({path.name: path.read_bytes() for path in resnet.iterdir()})
        self.requested: list[str] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requested.append(request.url.path)
        answers: dict[str, Callable[[], httpx.Response]] = {
            "/gone": lambda: httpx.Response(404),
            "/expired": lambda: httpx.Response(403),
            "/elsewhere": lambda: httpx.Response(302, headers={"Location": "http://169.254.169.254/"}),
            "/link": lambda: httpx.Response(200, content=EVIL),
        }
        return answers.get(request.url.path, lambda: httpx.Response(200, content=self.package))()

    def upload(self, path: str, digest: str = "", origin: str = ORIGIN) -> UploadedModel:
        """A reference to the model, by its own digest unless another is given."""
        return UploadedModel(digest=digest or hashlib.sha256(self.package).hexdigest(), url=origin + path)


@pytest.fixture
def store(resnet: Path) -> Store:
    return Store(resnet)


@pytest.fixture
def models(store: Store, tmp_path: Path) -> Iterator[UploadedModels]:
    transport = httpx.MockTransport(store.answer)
    models = UploadedModels(ORIGIN, Limits(), Quarantine(str(tmp_path)), make_batcher, transport)
    yield models
    models.close()


def make_batcher(
    run: Any, max_batch: int, at_once: int = 1, on_stop: Any = None, kind: Any = lambda key: key
) -> MicroBatcher[Any, Any, Any]:
    metrics = BatchMetrics("test", CollectorRegistry())
    return MicroBatcher(run, BatchPolicy(max_batch, at_once=at_once), metrics, on_stop=on_stop, kind=kind)


@pytest.mark.slow
def test_uploads_of_one_digest_are_fetched_once(models: UploadedModels, store: Store) -> None:
    async def scenario() -> None:
        uploads = [store.upload(f"/a?sign={sign}") for sign in (1, 2)]
        first, second = await asyncio.gather(*(models.examine(upload, 64, math.inf) for upload in uploads))
        async with models.using(store.upload("/b")) as third:
            assert first is second is third
        assert store.requested == ["/a"]
        first.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "digest", "origin", "kind"),
    [
        ("/gone", "0" * 64, ORIGIN, NotFound),
        ("/expired", "1" * 64, ORIGIN, DependencyFailed),
        ("/elsewhere", "2" * 64, ORIGIN, DependencyFailed),
        ("/damaged", "3" * 64, ORIGIN, DependencyFailed),
        ("/link", hashlib.sha256(EVIL).hexdigest(), ORIGIN, InvalidInput),
        ("/a", "4" * 64, "http://store:9001", InvalidInput),
        ("/a", "5" * 64, "file://", InvalidInput),
        ("/a", "6" * 64, "http://store:9000@169.254.169.254", InvalidInput),
        ("/a", "7" * 64, "https://store:9000", InvalidInput),
    ],
)
def test_uploads_come_from_the_store_alone_and_are_verified_by_digest(
    models: UploadedModels, store: Store, path: str, digest: str, origin: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        asyncio.run(models.examine(store.upload(path, digest, origin), 64, math.inf))


def test_without_an_origin_no_upload_is_fetched(store: Store, tmp_path: Path) -> None:
    models = UploadedModels("", Limits(), Quarantine(str(tmp_path)), make_batcher)
    with pytest.raises(InvalidInput, match="CONTRAFACT_MODEL_ORIGIN"):
        asyncio.run(models.examine(store.upload("/a"), 64, math.inf))
    assert store.requested == []
