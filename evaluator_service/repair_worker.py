"""The trainer: a separate Celery worker on the queue `repairs`, which trains and evaluates the arms of a repair.

    lease ──► order, images and model from the object store ──► each arm: train ─ judge ─ package ──► outcome

It shares only the broker and the object store with the gateway. Checkpoints and each arm's judgement are stored, so any
trainer can resume a repair. Every few seconds it writes a heartbeat and verifies its lease; a trainer that lost its
lease stops, and nothing that it writes later is read.

    python -m evaluator_service.repair_worker

Cache the decoded images that a training reads repeatedly, up to a number of bytes.

A trainer's lease of a repair: heartbeats while it works, and whether it must stop.

Settings of the trainer, read from the environment (`CONTRAFACT_…`) at the start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
from celery import Celery
from celery.signals import worker_ready, worker_shutting_down
from prometheus_client import CollectorRegistry
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from evaluator_service.models_under_test.kinds import KINDS
from evaluator_service.models_under_test.trainable import Trainable, TrainingExample
from evaluator_service.models_under_test.uploads import unpack
from evaluator_service.retraining import ArmDataset, copy_weights, pack, random_weights, train, unpack_checkpoint
from shared.media.images import ImageSettings, Mode, Pixels, decode
from shared.media.storage import ObjectMissing, ObjectStore, image_key, repair_key
from shared.media.stores import store_at
from shared.problems import DependencyFailed, DeviceFailed, InvalidInput, NotReady, Problem
from shared.profiles.profile import load_profile
from shared.profiles.weights import Weights, write_tar
from shared.schemas.repairs import (
    QUEUE,
    REPAIR,
    TRAINED,
    Arm,
    Example,
    Heartbeat,
    Judgement,
    RepairLease,
    RepairOrder,
    RepairOutcome,
    TrainedArm,
)
from shared.service import logging as json_logging
from shared.service.celery_app import broker_fault, open_celery
from shared.service.device_errors import is_device_failure
from shared.service.devices import choose_device
from shared.service.gpu import see_one_gpu
from shared.service.model_health import end_process
from shared.service.model_service import LOADING
from shared.service.probes import operations_port
from shared.service.threads import compute_threads

CACHED_BYTES = 2 * 1024**3


class TrainerSettings(ImageSettings):
    """The fields have the meaning of the same settings of the gateway and of the model services."""

    model_config = SettingsConfigDict(env_prefix="CONTRAFACT_", extra="ignore", frozen=True, hide_input_in_errors=True)

    broker_url: Annotated[str, Field(repr=False)] = "memory://localhost"
    object_store: str = "directory:objects"
    s3_endpoint: str = ""
    s3_access_key: str = ""
    s3_secret_key: SecretStr = SecretStr("")
    s3_secure: bool = False
    profile: str = "tiny"
    device: str = "auto"
    threads: Annotated[int, Field(ge=0)] = 0
    cached_bytes: Annotated[int, Field(ge=0)] = CACHED_BYTES
    """Decoded images that the trainer keeps between steps."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0


class LeaseEnded(Exception):
    """The lease was lost, or the trainer is stopping; the work must end without further writes."""


class LeaseState:
    """Whether the lease still holds, and the progress to report in the next heartbeat."""

    def __init__(self, stopping: threading.Event) -> None:
        self.lost = threading.Event()
        self._stopping = stopping
        self.heartbeat = Heartbeat(beat=0)

    def record_progress(self, done: int, total: int, arm: str) -> None:
        """Record the progress. Raises LeaseEnded."""
        self.heartbeat = Heartbeat(beat=0, done=done, total=total, arm=arm)
        self.refuse_ended()

    def refuse_ended(self) -> None:
        """Raise LeaseEnded if the work must not continue."""
        if self.lost.is_set() or self._stopping.is_set():
            raise LeaseEnded


@contextmanager
def heartbeats(
    store: ObjectStore, lease: RepairLease, seconds: float, stopping: threading.Event
) -> Iterator[LeaseState]:
    """Write heartbeats at once and then regularly while the block runs. Raises LeaseEnded if the lease was lost."""
    state, over = LeaseState(stopping), threading.Event()

    def beat(number: int) -> None:
        if not _holds(store, lease):
            state.lost.set()
            return
        heartbeat = state.heartbeat.model_copy(update={"beat": number})
        store.put(repair_key(lease.repair, lease.token, "progress.json"), heartbeat.model_dump_json().encode())

    def keep_beating() -> None:
        number = 1
        while not over.wait(seconds) and not state.lost.is_set():
            number += 1
            try:
                beat(number)
            except DependencyFailed as error:  # a longer outage lets the lease expire
                logger.warning("no heartbeat could be written: %s", error)

    beat(1)
    state.refuse_ended()
    thread = threading.Thread(target=keep_beating, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield state
    finally:
        over.set()
        thread.join()


def _holds(store: ObjectStore, lease: RepairLease) -> bool:
    try:
        return RepairLease.model_validate_json(store.get(repair_key(lease.repair, "grant.json"))) == lease
    except ObjectMissing:
        return False


Key = tuple[str, Mode]
BEAT_SECONDS = 5.0

logger = logging.getLogger("contrafact.trainer")


class Trainer:
    """Works on leased repairs."""

    def __init__(
        self,
        store: ObjectStore,
        profile: str,
        device: str,
        *,
        beat_seconds: float = BEAT_SECONDS,
        stopping: threading.Event | None = None,
        cached_bytes: int = CACHED_BYTES,
    ) -> None:
        """`device` is torch's name, or `auto`; once `stopping` is set, work ends at the next step or image.

        `cached_bytes`: capacity of the cache of decoded images.
        """
        self._store, self._profile, self._device = store, profile, device
        self._beat_seconds, self._cached_bytes = beat_seconds, cached_bytes
        self._stopping = stopping or threading.Event()

    def work(self, lease: RepairLease) -> None:
        """Run the leased repair unless the lease was lost.

        Raises DependencyFailed, and DeviceFailed for a broken accelerator; the lease then expires.
        """
        with json_logging.bound(repair=lease.repair):
            try:
                with heartbeats(self._store, lease, self._beat_seconds, self._stopping) as state:
                    outcome = self._outcome(lease, state)
                    state.refuse_ended()
                    key = repair_key(lease.repair, lease.token, "outcome.json")
                    self._store.put(key, outcome.model_dump_json().encode())
            except LeaseEnded:
                logger.info("the lease of repair %s has ended", lease.repair)

    def _outcome(self, lease: RepairLease, state: LeaseState) -> RepairOutcome:
        try:
            order = RepairOrder.model_validate_json(self._store.get(repair_key(lease.repair, "order.json")))
            with tempfile.TemporaryDirectory(prefix="repair-") as place:
                repair = _Repair(order, self._store, Path(place), state, self._cached_bytes)
                return repair.run(self._profile, self._device)
        except (LeaseEnded, DependencyFailed):
            raise
        except Problem as problem:
            return RepairOutcome(problem=problem.detail)
        except ObjectMissing as error:
            return RepairOutcome(problem=f"{error.args[0]} is gone; was the job deleted, or the model?")
        except Exception as error:  # any other error of a model or its library fails the repair
            if is_device_failure(error):
                raise DeviceFailed(f"the accelerator failed: {error}") from error
            logger.exception("repair %s failed", lease.repair)
            return RepairOutcome(problem=f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")


class _Repair:
    """One order in progress: its model, images and finished arms."""

    def __init__(
        self, order: RepairOrder, store: ObjectStore, place: Path, state: LeaseState, cached_bytes: int
    ) -> None:
        self._order, self._store, self._place, self._state = order, store, place, state
        self._images = PixelCache(self._open, cached_bytes)

    def run(self, profile: str, device: str) -> RepairOutcome:
        """Evaluate the original model, then train every arm from it and evaluate that."""
        order = self._order
        classes = order.classes or sorted({example.label for example in [*order.originals, *order.judged]})
        kind = KINDS[order.kind]
        if kind.trainable is None:
            raise InvalidInput(f"a {kind.noun} cannot be repaired")
        with LOADING:
            device = choose_device(torch, device)
            trainable = kind.trainable(self._weights(profile), classes, device=device)
        scratch, seed = order.parameters.from_scratch, order.parameters.seed
        start = random_weights(trainable.model, seed) if scratch else copy_weights(trainable.model)
        judgements: dict[Arm, Judgement] = {"before": self._evaluate("before", trainable)}
        for number, arm in enumerate(TRAINED):
            if (judgement := self._load_judgement(arm)) is None:
                trainable.model.load_state_dict(start)
                self._train(arm, number, trainable)
                self._keep(arm, trainable)  # before the judgement, which marks the arm as finished
                judgement = self._evaluate(arm, trainable)
            judgements[arm] = judgement
        libraries = {name: version(name) for name in ("contrafact", "torch", "transformers", "accelerate", "kornia")}
        return RepairOutcome(judgements=judgements, versions={"python": platform.python_version(), **libraries})

    def _weights(self, profile: str) -> Weights:
        upload = self._order.upload
        if upload is None:
            models = load_profile(profile).evaluator.models_under_test
            if self._order.model not in models:
                raise InvalidInput(f"the trainer's profile has no model under test {self._order.model!r}")
            return models[self._order.model]
        data = self._store.get(upload.key)
        if hashlib.sha256(data).hexdigest() != upload.digest:
            raise DependencyFailed("the model under test was damaged in transfer: its SHA-256 differs from its digest")
        folder = self._place / "model"
        folder.mkdir()
        unpack(BytesIO(data), folder)
        return Weights(path=folder, licence="", gigabytes=1)

    def _train(self, arm: TrainedArm, place: int, trainable: Trainable) -> None:
        order, key = self._order, repair_key(self._order.repair, arm, "checkpoint.tar")
        total = len(TRAINED) * order.parameters.steps

        def report_step(step: int) -> None:
            self._state.record_progress(place * order.parameters.steps + step, total, arm)

        def report_checkpoint(checkpoint: Path) -> None:
            self._state.refuse_ended()
            with tempfile.TemporaryFile() as file:
                pack(checkpoint, file)
                self._store.put_file(key, file)

        try:
            resume_from = unpack_checkpoint(BytesIO(self._store.get(key)), self._place / "resumed")
        except ObjectMissing:
            resume_from = None
        dataset = ArmDataset(order, arm, trainable, self._load_example)
        folder = self._place / arm
        train(
            trainable,
            dataset,
            order.parameters,
            folder,
            resume_from=resume_from,
            stepped=report_step,
            saved=report_checkpoint,
        )

    def _load_judgement(self, arm: Arm) -> Judgement | None:
        try:
            return Judgement.model_validate_json(self._store.get(repair_key(self._order.repair, arm, "judged.json")))
        except ObjectMissing:
            return None

    def _evaluate(self, arm: Arm, trainable: Trainable) -> Judgement:
        """Evaluate an arm on every image, unless its judgement is stored; the work may end between images."""
        if (stored := self._load_judgement(arm)) is not None:
            return stored
        judgement = trainable.judge([partial(self._load_unless_ended, example) for example in self._order.judged])
        self._store.put(repair_key(self._order.repair, arm, "judged.json"), judgement.model_dump_json().encode())
        return judgement

    def _keep(self, arm: TrainedArm, trainable: Trainable) -> None:
        """Store the arm's model as a package: a plain tar of its files, sorted and without dates."""
        folder = self._place / f"{arm}-model"
        folder.mkdir()
        trainable.save(folder)
        with tempfile.TemporaryFile() as file:
            write_tar(folder, file)
            self._store.put_file(repair_key(self._order.repair, arm, "package.tar"), file)

    def _load_unless_ended(self, example: Example) -> TrainingExample:
        self._state.refuse_ended()
        return self._load_example(example)

    def _load_example(self, example: Example) -> TrainingExample:
        mask = None if example.mask is None else self._images.get(example.mask, "L")
        return TrainingExample(self._images.get(example.image, "RGB"), example.label, mask)

    def _open(self, digest: str, mode: Mode) -> Pixels:
        return decode(self._store.get(image_key(digest)), mode)


def register(celery: Celery, trainer: Trainer) -> None:
    """Register the trainer's work as a task of a Celery app."""

    def repair(message: dict[str, Any]) -> None:
        try:
            trainer.work(RepairLease.model_validate(message))
        except DeviceFailed as problem:
            end_process("the trainer", problem.detail)

    celery.task(repair, name=REPAIR, ignore_result=True, shared=False)


def refuse_unready(connected: threading.Event, stopping: threading.Event) -> None:
    """Raises NotReady unless the trainer reads its queue."""
    if stopping.is_set():
        raise NotReady("this trainer is stopping")
    if not connected.is_set():
        raise NotReady("this trainer has not connected to the broker yet", retry_after=2)


def main() -> None:
    """Run the trainer with the settings of the environment until it is stopped."""
    json_logging.configure()
    logging.captureWarnings(True)
    transformers.utils.logging.disable_progress_bar()
    settings = TrainerSettings()
    device = see_one_gpu(settings.device, os.environ)  # transformers' Trainer would use all visible GPUs
    torch.backends.cudnn.deterministic = True
    celery = open_celery(settings.broker_url)
    if fault := broker_fault(celery):
        raise SystemExit(fault)
    # A message is acknowledged when it is read, because the gateway follows the work by its heartbeats.
    celery.conf.task_acks_late = False
    secret = settings.s3_secret_key.get_secret_value()
    place = (settings.object_store, "", settings.s3_endpoint, settings.s3_access_key, secret, settings.s3_secure)
    stopping = threading.Event()
    worker_shutting_down.connect(lambda **_: stopping.set(), weak=False)
    torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
    trainer = Trainer(store_at(*place), settings.profile, device, stopping=stopping, cached_bytes=settings.cached_bytes)
    register(celery, trainer)
    connected = threading.Event()
    worker_ready.connect(lambda **_: connected.set(), weak=False)
    with ExitStack() as stack:
        if settings.metrics_port:
            ready = partial(refuse_unready, connected, stopping)
            stack.enter_context(operations_port(settings.metrics_port, lambda: None, ready, CollectorRegistry()))
        celery.worker_main(["--quiet", "worker", "--pool", "solo", "--queues", QUEUE, "--loglevel", "WARNING"])


class PixelCache:
    """The most recently opened images, by digest and mode, in up to `max_bytes`; for one thread.

    An image larger than `max_bytes` is opened every time.
    """

    def __init__(self, opened: Callable[[str, Mode], Pixels], max_bytes: int) -> None:
        self._opened, self._max_bytes = opened, max_bytes
        self._images: OrderedDict[Key, Pixels] = OrderedDict()
        self.bytes = 0

    def get(self, digest: str, mode: Mode) -> Pixels:
        """The pixels of an image. Raises what opening it raises."""
        key = (digest, mode)
        if key in self._images:
            self._images.move_to_end(key)
            return self._images[key]
        pixels = self._opened(digest, mode)
        if pixels.nbytes <= self._max_bytes:
            self._images[key] = pixels
            self.bytes += pixels.nbytes
        while self.bytes > self._max_bytes:
            _, oldest = self._images.popitem(last=False)
            self.bytes -= oldest.nbytes
        return pixels


if __name__ == "__main__":
    main()
