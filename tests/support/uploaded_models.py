"""The evaluator with uploaded models: a store that serves packages, and a client of the service's contract."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import numpy as np
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from evaluator_service.app import create_app
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import ExamineRequest, ModelsReply, PredictRequest, SegmentRequest, UploadedModel
from shared.service.settings import ServiceSettings
from tests.support.archives import tarred
from tests.support.listening import listen
from tests.support.serving import serving

GREY = ImagePayload(png=encode(np.full((40, 40, 3), 90, np.uint8)))
LARGEST_SIDE = 2_048
WHITE = ImagePayload(png=encode(np.full((40, 40, 3), 255, np.uint8)))


class PackageStore:
    """Packages by digest over HTTP."""

    def __init__(self, url: str, packages: dict[str, bytes]) -> None:
        self.url, self._packages = url, packages

    def add(self, files: Mapping[str, bytes]) -> UploadedModel:
        """Keep a package; the evaluator's reference to it."""
        data = tarred(files)
        digest = hashlib.sha256(data).hexdigest()
        self._packages[digest] = data
        return UploadedModel(digest=digest, url=f"{self.url}/{digest}")


@contextmanager
def package_store() -> Iterator[PackageStore]:
    """A store on a loopback port."""
    app, packages = FastAPI(), dict[str, bytes]()

    @app.get("/{digest}")
    def read(digest: str) -> Response:
        data = packages.get(digest)
        return JSONResponse({}, 404) if data is None else Response(data)

    with listen(app) as url:
        yield PackageStore(url, packages)


class Evaluator:
    """A client of a served evaluator."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def examine(self, upload: UploadedModel) -> httpx.Response:
        """`POST /v1/examinations`."""
        request = ExamineRequest(upload=upload, largest_side=LARGEST_SIDE)
        return await self._client.post("/v1/examinations", content=request.model_dump_json())

    async def predict(self, model: UploadedModel | str, *images: ImagePayload) -> httpx.Response:
        """`POST /v1/predictions` of an upload or an alias, of a grey image by default."""
        name, upload = (model, None) if isinstance(model, str) else (model.digest, model)
        request = PredictRequest(model=name, upload=upload, images=list(images) or [GREY])
        return await self._client.post("/v1/predictions", content=request.model_dump_json())

    async def segment(self, model: UploadedModel, *images: ImagePayload) -> httpx.Response:
        """`POST /v1/segmentations` of an upload."""
        request = SegmentRequest(model=model.digest, upload=model, images=list(images))
        return await self._client.post("/v1/segmentations", content=request.model_dump_json())

    async def quarantined(self) -> dict[str, str]:
        """Digests with their reasons, as `GET /v1/models` lists them."""
        reply = ModelsReply.model_validate_json((await self._client.get("/v1/models")).content)
        return {model.digest: model.reason for model in reply.quarantined}

    async def waiting(self) -> float:
        """Items that wait for a batch, as `GET /metrics` counts them."""
        lines = (await self._client.get("/metrics")).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("contrafact_waiting"))

    async def healthy(self) -> bool:
        """Whether the service is alive and ready."""
        return [(await self._client.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]


@asynccontextmanager
async def evaluator(profile: Path, origin: str, quarantine: Path, **settings: object) -> AsyncIterator[Evaluator]:
    """A real evaluator that takes uploads from `origin`, with small batches."""
    chosen = ServiceSettings.model_validate(
        {
            "profile": str(profile),
            "device": "cpu",
            "threads": 1,
            "max_batch": 4,
            "model_origin": origin,
            "quarantine": str(quarantine),
            **settings,
        }
    )
    async with serving(create_app(chosen)) as client:
        client.timeout = httpx.Timeout(300.0)
        yield Evaluator(client)
