"""Uploaded models under test: fetched by a short-lived URL on first use, and cached by digest.

The cache can always be fetched again. The service opens URLs of one host only, the object store that the operator names
(`CONTRAFACT_MODEL_ORIGIN`), follows no redirect, and verifies the digest of what it fetched.
"""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import httpx

from evaluator_service.models_under_test.loading import Classifier, Segmenter, load_folder, try_out
from shared.problems import DependencyFailed, InvalidInput, NotFound, TooLarge
from shared.schemas.evaluation import UploadedModel
from shared.schemas.models import is_model_file
from shared.service import LOADING

CACHED = 4
MAX_BYTES = 8 * 1024**3  # the gateway's own limit is far below
FETCH_TIMEOUT = httpx.Timeout(60.0, connect=5.0)

Loaded = Classifier | Segmenter


class UploadedModels:
    """The uploaded models that are loaded at the moment, at most `CACHED`."""

    def __init__(self, origin: str, device: str, transport: httpx.BaseTransport | None = None) -> None:
        """`origin`: scheme, host and port of the object store's URLs; empty refuses all uploads."""
        self._origin = origin.rstrip("/")
        self._device = device
        self._transport = transport
        self._loading: OrderedDict[str, asyncio.Task[Loaded]] = OrderedDict()

    async def get(self, upload: UploadedModel) -> Loaded:
        """Load the model of a digest. Raises InvalidInput if it cannot be used, NotFound if it was deleted.

        Concurrent callers wait for the same load, which continues if one of them is cancelled.
        """
        task = self._loading.get(upload.digest)
        if task is None:
            task = asyncio.create_task(asyncio.to_thread(self._fetch_and_load, upload))
            self._loading[upload.digest] = task
        self._loading.move_to_end(upload.digest)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            raise
        except Exception:
            if self._loading.get(upload.digest) is task:
                del self._loading[upload.digest]
            raise
        finally:
            self._evict()

    def _evict(self) -> None:
        done = [digest for digest, task in self._loading.items() if task.done()]
        for digest in done[: max(0, len(done) - CACHED)]:
            del self._loading[digest]

    def _fetch_and_load(self, upload: UploadedModel) -> Loaded:
        self._check_origin(upload.url)
        with tempfile.TemporaryDirectory(prefix="model-under-test-") as name:
            folder = Path(name, "model")
            folder.mkdir()
            with Path(name, "package.tar").open("w+b") as package:
                self._fetch(upload, package)
                unpack(package, folder)
            with LOADING:
                model = load_folder(folder, device=self._device)
            try_out(model)
            return model

    def _check_origin(self, url: str) -> None:
        if not self._origin:
            raise InvalidInput("this evaluator takes no uploaded models; the operator sets CONTRAFACT_MODEL_ORIGIN")
        requested, allowed = urlsplit(url), urlsplit(self._origin)
        same = (requested.scheme, requested.netloc) == (allowed.scheme, allowed.netloc)
        if not same or requested.scheme not in ("http", "https"):
            raise InvalidInput("the URL is not of the object store that CONTRAFACT_MODEL_ORIGIN names")

    def _fetch(self, upload: UploadedModel, file: IO[bytes]) -> None:
        hasher, size = hashlib.sha256(), 0
        try:
            with (
                httpx.Client(timeout=FETCH_TIMEOUT, trust_env=False, transport=self._transport) as client,
                client.stream("GET", upload.url) as reply,
            ):
                if reply.status_code == 404:
                    raise NotFound("the model under test was deleted; add it again")
                if reply.status_code != 200:
                    raise DependencyFailed(f"the object store answered {reply.status_code} for a model under test")
                for chunk in reply.iter_bytes(1024**2):
                    size += len(chunk)
                    if size > MAX_BYTES:
                        raise TooLarge(f"the model is larger than {MAX_BYTES:,} bytes")
                    hasher.update(chunk)
                    file.write(chunk)
        except httpx.TransportError as error:
            raise DependencyFailed(f"the object store cannot be reached for a model under test: {error}") from error
        if hasher.hexdigest() != upload.digest:
            raise DependencyFailed("the model under test arrived damaged: its SHA-256 is not its digest")


def unpack(package: IO[bytes], folder: Path) -> None:
    """Extract the files of a package that the gateway wrote; any unexpected entry is refused."""
    package.seek(0)
    try:
        with tarfile.open(fileobj=package, mode="r:") as archive:
            for member in archive:
                if not member.isreg() or not is_model_file(member.name):
                    raise InvalidInput(f"the package holds {member.name[:100]!r}, which no model under test has")
                content = archive.extractfile(member)
                assert content is not None
                with (folder / member.name).open("xb") as file:
                    while chunk := content.read(1024**2):
                        file.write(chunk)
    except (tarfile.TarError, FileExistsError) as error:
        raise InvalidInput("the package of the model under test is not a plain tar; add the model again") from error
