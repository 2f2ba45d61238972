"""The trainer: a Celery worker of its own on the queue `repairs`, which trains and judges the arms of one repair.

    grant ──► order, images and model from the object store ──► each arm: train ─ judge ─ package ──► outcome

It shares nothing with the gateway but the broker and the object store. Whatever is done is in the store: checkpoints,
and each arm's judgement once; so a repair goes on where any trainer left it. Every few seconds it writes a sign of life
and looks whether its grant still holds; who holds none stops, and nothing that it writes later is read.

    python -m evaluator_service.repair_worker
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from celery import Celery
from celery.signals import worker_shutting_down
from prometheus_client import start_http_server

from evaluator_service.models_under_test.uploads import unpack
from evaluator_service.retraining import Lessons, learnt, pack, train, unpack_checkpoint
from evaluator_service.trainable import TRAINABLES, Lesson, Trainable
from evaluator_service.trainer_settings import TrainerSettings
from shared import logging as json_logging
from shared.celery_app import broker_fault, open_celery
from shared.devices import choose_device
from shared.images import Mode, Pixels, decode
from shared.problems import DependencyFailed, InvalidInput, Problem
from shared.profiles import load_profile
from shared.schemas.repairs import (
    QUEUE,
    REPAIR,
    TRAINED,
    Arm,
    Example,
    Grant,
    Judgement,
    RepairOrder,
    RepairOutcome,
    SignOfLife,
    TrainedArm,
)
from shared.service import LOADING
from shared.storage import ObjectMissing, ObjectStore, image_key, repair_key
from shared.stores import store_at
from shared.threads import compute_threads
from shared.weights import Weights, write_tar

BEAT_SECONDS = 5.0
IMAGES_HELD = 2_000

logger = logging.getLogger("contrafact.trainer")


class Ended(Exception):
    """The grant holds no more, or the trainer is being stopped: nothing more is to be done or written."""


class Trainer:
    """Works off grants."""

    def __init__(
        self,
        store: ObjectStore,
        profile: str,
        device: str,
        *,
        beat_seconds: float = BEAT_SECONDS,
        stopping: threading.Event | None = None,
    ) -> None:
        """`device` is torch's name, or auto; once `stopping` is set, work ends at its next step or image."""
        self._store, self._profile, self._device = store, profile, device
        self._beat_seconds = beat_seconds
        self._stopping = stopping or threading.Event()

    def work(self, grant: Grant) -> None:
        """Do what the grant is for, unless it holds no more. Raises DependencyFailed; the grant then lapses."""
        with json_logging.bound(repair=grant.repair):
            try:
                with _signs_of_life(self._store, grant, self._beat_seconds, self._stopping) as life:
                    outcome = self._outcome(grant, life)
                    life.refuse_ended()
                    key = repair_key(grant.repair, grant.token, "outcome.json")
                    self._store.put(key, outcome.model_dump_json().encode())
            except Ended:
                logger.info("repair %s is somebody else's now, or nobody's", grant.repair)

    def _outcome(self, grant: Grant, life: _Life) -> RepairOutcome:
        try:
            order = RepairOrder.model_validate_json(self._store.get(repair_key(grant.repair, "order.json")))
            with tempfile.TemporaryDirectory(prefix="repair-") as place:
                return _Repair(order, self._store, Path(place), life).run(self._profile, self._device)
        except (Ended, DependencyFailed):
            raise
        except Problem as problem:
            return RepairOutcome(problem=problem.detail)
        except ObjectMissing as error:
            return RepairOutcome(problem=f"{error.args[0]} is gone; was the job deleted, or the model?")
        except Exception as error:  # whatever a model or its library raises is the repair's own failure
            logger.exception("repair %s failed", grant.repair)
            return RepairOutcome(problem=f"{type(error).__name__}: {' '.join(str(error).split())[:500]}")


class _Repair:
    """One order on its way: the model, the images, and what of it is done."""

    def __init__(self, order: RepairOrder, store: ObjectStore, place: Path, life: _Life) -> None:
        self._order, self._store, self._place, self._life = order, store, place, life
        self._opened = lru_cache(IMAGES_HELD)(self._open)

    def run(self, profile: str, device: str) -> RepairOutcome:
        """Judge the model as it is, then train and judge every arm from there."""
        order = self._order
        classes = order.classes or sorted({one.label for one in [*order.originals, *order.judged]})
        with LOADING:
            trainable = TRAINABLES[order.kind](self._weights(profile), classes, device=choose_device(torch, device))
        start = learnt(trainable.model)
        judgements: dict[Arm, Judgement] = {"before": self._judged("before", trainable)}
        for place, arm in enumerate(TRAINED):
            if (known := self._known(arm)) is None:
                trainable.model.load_state_dict(start)
                self._train(arm, place, trainable)
                self._keep(arm, trainable)  # before the judgement: who finds that, looks no further
                known = self._judged(arm, trainable)
            judgements[arm] = known
        libraries = {name: version(name) for name in ("contrafact", "torch", "transformers", "accelerate", "kornia")}
        return RepairOutcome(judgements=judgements, versions={"python": platform.python_version(), **libraries})

    def _weights(self, profile: str) -> Weights:
        upload = self._order.upload
        if upload is None:
            known = load_profile(profile).evaluator.models_under_test
            if self._order.model not in known:
                raise InvalidInput(f"the trainer's profile has no model under test {self._order.model!r}")
            return known[self._order.model]
        data = self._store.get(upload.key)
        if hashlib.sha256(data).hexdigest() != upload.digest:
            raise DependencyFailed("the model under test arrived damaged: its SHA-256 is not its digest")
        folder = self._place / "model"
        folder.mkdir()
        unpack(BytesIO(data), folder)
        return Weights(path=folder, licence="", gigabytes=1)

    def _train(self, arm: TrainedArm, place: int, trainable: Trainable) -> None:
        order, key = self._order, repair_key(self._order.repair, arm, "checkpoint.tar")
        total = len(TRAINED) * order.parameters.steps

        def stepped(step: int) -> None:
            self._life.reached(place * order.parameters.steps + step, total, arm)

        def saved(checkpoint: Path) -> None:
            self._life.refuse_ended()
            with tempfile.TemporaryFile() as file:
                pack(checkpoint, file)
                self._store.put_file(key, file)

        try:
            resume_from = unpack_checkpoint(BytesIO(self._store.get(key)), self._place / "resumed")
        except ObjectMissing:
            resume_from = None
        lessons = Lessons(order, arm, trainable, self._lesson)
        folder = self._place / arm
        train(trainable, lessons, order.parameters, folder, resume_from=resume_from, stepped=stepped, saved=saved)

    def _known(self, arm: Arm) -> Judgement | None:
        try:
            return Judgement.model_validate_json(self._store.get(repair_key(self._order.repair, arm, "judged.json")))
        except ObjectMissing:
            return None

    def _judged(self, arm: Arm, trainable: Trainable) -> Judgement:
        """Ask an arm about every image, in parts between which the work may end."""
        if (known := self._known(arm)) is not None:
            return known
        found = trainable.judge([partial(self._checked_lesson, one) for one in self._order.judged])
        self._store.put(repair_key(self._order.repair, arm, "judged.json"), found.model_dump_json().encode())
        return found

    def _keep(self, arm: TrainedArm, trainable: Trainable) -> None:
        """Store the arm's model as a package: a plain tar of its files, sorted and dateless."""
        folder = self._place / f"{arm}-model"
        folder.mkdir()
        trainable.save(folder)
        with tempfile.TemporaryFile() as file:
            write_tar(folder, file)
            self._store.put_file(repair_key(self._order.repair, arm, "package.tar"), file)

    def _checked_lesson(self, example: Example) -> Lesson:
        self._life.refuse_ended()
        return self._lesson(example)

    def _lesson(self, example: Example) -> Lesson:
        mask = None if example.mask is None else self._opened(example.mask, "L")
        return Lesson(self._opened(example.image, "RGB"), example.label, mask)

    def _open(self, digest: str, mode: Mode) -> Pixels:
        return decode(self._store.get(image_key(digest)), mode)


class _Life:
    """A grant as its holder sees it, and what there is to say of the work."""

    def __init__(self, stopping: threading.Event) -> None:
        self.lost = threading.Event()
        self._stopping = stopping
        self.said = SignOfLife(beat=0)

    def reached(self, done: int, total: int, arm: str) -> None:
        """Note how far the work is. Raises Ended."""
        self.said = SignOfLife(beat=0, done=done, total=total, arm=arm)
        self.refuse_ended()

    def refuse_ended(self) -> None:
        """Raises Ended where the work must not go on."""
        if self.lost.is_set() or self._stopping.is_set():
            raise Ended


@contextmanager
def _signs_of_life(store: ObjectStore, grant: Grant, seconds: float, stopping: threading.Event) -> Iterator[_Life]:
    """Write one at once and then regularly, while the block runs. Raises Ended where the grant holds no more."""
    life, over = _Life(stopping), threading.Event()

    def beat(number: int) -> None:
        if not _holds(store, grant):
            life.lost.set()
            return
        said = life.said.model_copy(update={"beat": number})
        store.put(repair_key(grant.repair, grant.token, "progress.json"), said.model_dump_json().encode())

    def go_on() -> None:
        number = 1
        while not over.wait(seconds) and not life.lost.is_set():
            number += 1
            try:
                beat(number)
            except DependencyFailed as error:  # for a while; if for long, the grant lapses
                logger.warning("no sign of life could be written: %s", error)

    beat(1)
    life.refuse_ended()
    thread = threading.Thread(target=go_on, name="signs of life", daemon=True)
    thread.start()
    try:
        yield life
    finally:
        over.set()
        thread.join()


def _holds(store: ObjectStore, grant: Grant) -> bool:
    try:
        return Grant.model_validate_json(store.get(repair_key(grant.repair, "grant.json"))) == grant
    except ObjectMissing:
        return False


def register(celery: Celery, trainer: Trainer) -> None:
    """Make the trainer's work the task of a Celery app."""

    def repair(message: dict[str, Any]) -> None:
        trainer.work(Grant.model_validate(message))

    celery.task(repair, name=REPAIR, ignore_result=True, shared=False)


def main() -> None:
    """Train with the settings of the environment until told to stop."""
    json_logging.configure()
    logging.captureWarnings(True)
    os.environ.setdefault("TQDM_DISABLE", "1")
    settings = TrainerSettings()
    torch.backends.cudnn.deterministic = True
    celery = open_celery(settings.broker_url)
    if fault := broker_fault(celery):
        raise SystemExit(fault)
    # A message is done with once it is read: whether the work is done, the gateway sees by its signs of life.
    celery.conf.task_acks_late = False
    secret = settings.s3_secret_key.get_secret_value()
    place = (settings.object_store, "", settings.s3_endpoint, settings.s3_access_key, secret, settings.s3_secure)
    stopping = threading.Event()
    worker_shutting_down.connect(lambda **_: stopping.set(), weak=False)
    torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
    register(celery, Trainer(store_at(*place), settings.profile, settings.device, stopping=stopping))
    if settings.metrics_port:
        start_http_server(settings.metrics_port)
    celery.worker_main(["worker", "--pool", "solo", "--queues", QUEUE, "--loglevel", "WARNING"])


if __name__ == "__main__":
    main()
