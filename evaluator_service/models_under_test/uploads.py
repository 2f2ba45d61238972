"""Uploaded models under test: fetched by a short-lived URL on first use, each run in its own process.

    URL ──► digest verified ──► unpacked ──► process: loaded, tried ──► batches, until evicted as least recently used

The processes can always be started again. The service opens URLs of one host only, the object store that the operator
names (`CONTRAFACT_MODEL_ORIGIN`), follows no redirect, and verifies the digest of each package.

Limit how many images an uploaded model gets at once, from the time that earlier images took.

A batch that exceeds its time limit ends the process and quarantines the model, even if each of its images is within the
limit. So an image that is larger than all earlier ones runs alone. Later batches have the number of images that would
take half of the limit, assuming that each takes as long as the largest so far.
"""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from numpy.typing import NDArray

from evaluator_service.models_under_test.messages import Limits
from evaluator_service.models_under_test.quarantine import Quarantine
from evaluator_service.models_under_test.sandbox import ProcessKilled, Sandbox, Spawner
from shared.certificates import trusted
from shared.media.images import Pixels
from shared.problems import DependencyFailed, DeviceFailed, InvalidInput, ModelStopped, NotFinite, NotFound, TooLarge
from shared.schemas.evaluation import UploadedModel
from shared.schemas.models import is_model_file
from shared.service.batching import BatchTooLong, MicroBatcher
from shared.service.model_service import MakeBatcher

SHARE = 0.5  # of the limit: a batch may take longer than its images did
CACHED = 4
LOADS_AT_ONCE = 2
MAX_BYTES = 8 * 1024**3  # far above the gateway's own limit
FETCH_TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class RunningModel:
    """An uploaded model in its process, with a batcher of its own: a slow one delays no other."""

    def __init__(self, digest: str, sandbox: Sandbox, quarantine: Quarantine, make_batcher: MakeBatcher) -> None:
        self.kind, self.classes = sandbox.kind, sandbox.classes
        self.users = 0
        self._digest, self._sandbox, self._quarantine = digest, sandbox, quarantine
        self._pace = Pace(sandbox.limits.batch_seconds)
        self._batcher: MicroBatcher[None, Pixels, NDArray[Any]] = make_batcher(
            self._run, sandbox.limits.max_batch, on_stop=sandbox.close
        )

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self._sandbox.ended

    async def outputs(self, images: Sequence[Pixels], deadline: float) -> list[NDArray[Any]]:
        """The answer for each image. Raises what `Sandbox.run` and the batcher raise."""
        return await self._batcher.submit_all(images, key=None, deadline=deadline)

    def stop(self) -> None:
        """End the process after its present batch; returns at once."""
        self._batcher.drain(0.0)

    def _run(self, _: None, images: Sequence[Pixels]) -> list[NDArray[Any] | NotFinite]:
        if self.ended:  # during an earlier batch: this one waited, and leaves no mark
            raise DependencyFailed("the process of the model ended before this batch; the next request starts it again")
        if not self._sandbox.limits.deterministic:  # its batches have one size
            self._pace.check(images)
        with self._pace.time_batch(images), guard(self._quarantine, self._digest, self._quarantine.clear):
            return self._sandbox.run(images)


@contextmanager
def guard(quarantine: Quarantine, digest: str, survived: Callable[[str], None]) -> Iterator[None]:
    """Mark a model while it is loaded or run, and quarantine it if it stops its process; else call `survived`."""
    quarantine.mark(digest)
    try:
        yield
    except ModelStopped as problem:
        quarantine.record(digest, problem.detail)
        raise
    except (DeviceFailed, ProcessKilled):  # the model may be the cause, so the mark stays
        raise
    except Exception:
        survived(digest)
        raise
    survived(digest)


class UploadedModels:
    """The uploaded models that run at the moment, at most `CACHED` unless more are in use."""

    def __init__(
        self,
        origin: str,
        limits: Limits,
        quarantine: Quarantine,
        make_batcher: MakeBatcher,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`origin`: scheme, host and port of the object store's URLs; empty refuses all uploads."""
        self._origin = origin.rstrip("/")
        self._limits = limits
        self._quarantine = quarantine
        self._make_batcher = make_batcher
        self._transport = transport
        self._models: OrderedDict[str, asyncio.Future[RunningModel]] = OrderedDict()
        self._spawner = Spawner()
        # Separate threads, so that slow loads do not block the decoding of images.
        self._loaders = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="load-upload")

    @asynccontextmanager
    async def using(self, upload: UploadedModel) -> AsyncIterator[RunningModel]:
        """Yield the model of a digest, which runs at least until the block ends.

        Concurrent callers wait for the same load, which continues if one of them is cancelled. Raises ModelStopped for
        a quarantined model, InvalidInput if it cannot be used, NotFound if it was deleted.
        """
        await asyncio.to_thread(self._quarantine.refuse, upload.digest)
        model = await self._load(upload)
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1
            self._evict()

    async def examine(self, upload: UploadedModel, largest_side: int, deadline: float) -> RunningModel:
        """Load a model and try it, also on the largest image of a job; this ends its quarantine.

        Raises what `using` and `RunningModel.outputs` raise.
        """
        await asyncio.to_thread(self._quarantine.clear, upload.digest)
        async with self.using(upload) as model:
            await try_largest(model, largest_side, deadline)
            return model

    def close(self) -> None:
        """End the spawner; the models' processes end with their batchers."""
        self._spawner.close()

    async def _load(self, upload: UploadedModel) -> RunningModel:
        load = self._models.get(upload.digest)
        if load is None or _is_over(load):
            loop = asyncio.get_running_loop()
            load = loop.run_in_executor(self._loaders, self._fetch_and_load, upload)
            self._models[upload.digest] = load
        self._models.move_to_end(upload.digest)
        try:
            return await asyncio.shield(load)
        except asyncio.CancelledError:
            raise
        except Exception:
            if self._models.get(upload.digest) is load:
                del self._models[upload.digest]
            raise

    def _evict(self) -> None:
        """Stop the least recently used models that no request uses."""
        loaded = {digest: load.result() for digest, load in self._models.items() if _is_loaded(load)}
        idle = [digest for digest, model in loaded.items() if not model.users]
        for digest in idle[: max(0, len(loaded) - CACHED)]:
            del self._models[digest]
            loaded[digest].stop()

    def _fetch_and_load(self, upload: UploadedModel) -> RunningModel:
        self._check_origin(upload.url)
        with tempfile.TemporaryDirectory(prefix="model-under-test-") as name:
            folder = Path(name, "model")
            folder.mkdir()
            with Path(name, "package.tar").open("w+b") as package:
                self._fetch(upload, package)
                unpack(package, folder)
            sandbox = Sandbox(self._spawner, self._limits)
            try:
                with guard(self._quarantine, upload.digest, self._quarantine.unmark):
                    sandbox.load(folder)
                return RunningModel(upload.digest, sandbox, self._quarantine, self._make_batcher)
            except BaseException:
                sandbox.close()
                raise

    def _check_origin(self, url: str) -> None:
        if not self._origin:
            raise InvalidInput("this evaluator takes no uploaded models; the operator sets CONTRAFACT_MODEL_ORIGIN")
        requested, origin = urlsplit(url), urlsplit(self._origin)
        same_origin = (requested.scheme, requested.netloc) == (origin.scheme, origin.netloc)
        if not same_origin or requested.scheme not in ("http", "https"):
            raise InvalidInput("the URL does not belong to the object store that CONTRAFACT_MODEL_ORIGIN names")

    def _fetch(self, upload: UploadedModel, file: IO[bytes]) -> None:
        hasher, size = hashlib.sha256(), 0
        try:
            with (
                httpx.Client(
                    timeout=FETCH_TIMEOUT, trust_env=False, transport=self._transport, verify=trusted()
                ) as client,
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
            raise DependencyFailed("the model under test was damaged in transfer: its SHA-256 differs from its digest")


async def try_largest(model: RunningModel, side: int, deadline: float) -> None:
    """Run a model on an image of side × side pixels, alone or as a padded batch, as a job would.

    Raises what `RunningModel.outputs` raises.
    """
    picture = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    try:
        await model.outputs([picture], deadline)
    except ModelStopped as problem:
        advice = f"jobs have images of up to {side:,} pixels a side; let the image processor resize them to less"
        raise ModelStopped(f"{problem.detail}; {advice}", members=problem.members) from problem


def _is_loaded(load: asyncio.Future[RunningModel]) -> bool:
    return load.done() and not load.cancelled() and load.exception() is None


def _is_over(load: asyncio.Future[RunningModel]) -> bool:
    """Whether a load failed, or its process has ended since."""
    return load.done() and not (_is_loaded(load) and not load.result().ended)


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


class Pace:
    """Seconds per image of the largest images so far, of one model."""

    def __init__(self, batch_seconds: float) -> None:
        """`batch_seconds` is the time limit of a batch."""
        self._seconds = SHARE * batch_seconds
        self._largest = 0
        self._seconds_per_image = 0.0

    def check(self, images: Sequence[Pixels]) -> None:
        """Raise BatchTooLong unless the images (height × width × 3) may run at once."""
        if len(images) == 1:
            return
        if _largest(images) > self._largest:
            raise BatchTooLong(f"images of {_largest(images):,} pixels have not been timed yet")
        if len(images) * self._seconds_per_image > self._seconds:
            raise BatchTooLong(f"an image takes {self._seconds_per_image:.1f} s; these may take {self._seconds:g} s")

    @contextmanager
    def time_batch(self, images: Sequence[Pixels]) -> Iterator[None]:
        """Time a batch that runs in the block; one that fails does not count."""
        started = time.monotonic()
        yield
        if (largest := _largest(images)) >= self._largest:
            self._largest = largest
            self._seconds_per_image = (time.monotonic() - started) / len(images)


def _largest(images: Sequence[Pixels]) -> int:
    """Pixels of the largest image."""
    return max(int(image.shape[0] * image.shape[1]) for image in images)
