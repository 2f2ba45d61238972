"""Measure how much a source image adds to the recorded calls of a job with a large label set.

    python -m benchmarks.recorded_calls --directory runs/recorded [--classes 1000] [--images 24] [--json FILE]

Postgres, worker and object store (a directory) are real. The services answer at once with vectors as wide as those of
CLIP ViT-L/14 and probabilities of all classes, in float32 as models give them: method `shifts` with five shifts and
their null arm, one model under test. The first image is measured separately, because it also records the calls that all
images share.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from sqlalchemy import func, select

from benchmarks.scale.site import absolute
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.database.tables import LOCAL_OWNER, Job, Owner, RecordedCall, SourceImage
from gateway.methods import read_method
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.settings import Settings
from gateway.worker.worker import Worker
from shared.celery_app import open_celery
from shared.images import encode
from shared.schemas.evaluation import EmbedReply, EmbedRequest, PredictReply, PredictRequest
from shared.schemas.service import SERVICES
from shared.storage import DirectoryStore
from tests.support.deployment import postgres, postgres_url
from tests.support.small_services import SmallServices, serve

WIDTH = 768
PIXELS = 64
SHIFTS: list[JsonValue] = ["at night", "in the snow", "in the rain", "in the fog", "at sunset"]
METHODS = [read_method("shifts", {"shifts": SHIFTS, "steps": 16})]


class WideServices(SmallServices):
    """The small services with vectors and probabilities of full size, which depend on text and pixels."""

    def __init__(self, classes: list[str]) -> None:
        super().__init__()
        self._classes = classes

    def _embeddings(self, request: EmbedRequest) -> EmbedReply:
        self._called("embed")
        return EmbedReply(
            images=[_unit(image.png) for image in request.images],
            texts=[_unit(text.encode()) for text in request.texts],
            logit_scale=100.0,
        )

    def _predictions(self, request: PredictRequest) -> PredictReply:
        self._called("predict")
        rows = [np.exp(3 * _normal(image.png, len(self._classes))) for image in request.images]
        return PredictReply(classes=self._classes, probabilities=[(row / row.sum()).tolist() for row in rows])


@dataclass(frozen=True, slots=True)
class Stored:
    """Rows and bytes of the table `recorded_calls` (indexes and TOAST included), and of the objects of its vectors."""

    rows: int
    table_bytes: int
    objects: int
    object_bytes: int

    def growth(self, before: Stored, images: int) -> dict[str, float]:
        """The growth since `before`, per image."""
        recorded = asdict(before)
        return {name: round((value - recorded[name]) / images, 1) for name, value in asdict(self).items()}


def main() -> None:
    """Run both jobs and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=absolute, required=True, help="a new folder, for database and objects")
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    arguments.directory.mkdir(0o700, parents=True)
    server = postgres(arguments.directory)
    server.start()
    try:
        server.wait()
        engine = open_engine(postgres_url(server))
        migrate(engine)
        classes = [f"thing number {number}" for number in range(arguments.classes)]
        figures = _measure(open_sessions(engine), arguments.directory / "objects", classes, arguments.images)
        engine.dispose()
    finally:
        server.kill()
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def _measure(sessions: Sessions, objects: Path, classes: list[str], images: int) -> dict[str, object]:
    store = DirectoryStore(objects)
    with serve(WideServices(classes)) as url:
        services = ModelServices(dict.fromkeys(SERVICES, url))
        worker = Worker(Settings(), sessions, store, services, open_celery("memory://localhost"))
        empty = _count_stored(sessions, objects)
        _run(worker, sessions, store, "first", classes, seed=1, images=1)
        first = _count_stored(sessions, objects)
        _run(worker, sessions, store, "others", classes, seed=2, images=images)
        stored_then = _count_stored(sessions, objects)
        services.close()
    return {
        "classes": len(classes),
        "vector_width": WIDTH,
        "images": images,
        "first_image": first.growth(empty, 1),
        "each_further_image": stored_then.growth(first, images),
    }


def _run(
    worker: Worker, sessions: Sessions, store: DirectoryStore, name: str, classes: list[str], seed: int, images: int
) -> None:
    shelf = ImageShelf(store, sessions, LOCAL_OWNER)
    pictures = np.random.default_rng(seed).integers(0, 255, (images, PIXELS, PIXELS, 3)).astype(np.uint8)
    with sessions.begin() as session:
        session.merge(Owner(id=LOCAL_OWNER, name="local"))
    digests = [shelf.keep(encode(picture)) for picture in pictures]
    shelf.save(set(digests))
    with sessions.begin() as session:
        chosen = {"classes": classes, "methods": METHODS, "models": ["m1"], "profile": "tiny"}
        session.add(Job(id=name, owner_id=LOCAL_OWNER, task_description="name the thing", **chosen))
        session.flush()
        session.add_all(
            SourceImage(id=f"{name}-{n}", job_id=name, position=n, digest=digest, ground_truth=classes[n])
            for n, digest in enumerate(digests)
        )
    while (state := _state(sessions, name)) == "running":
        worker.step()
    if state != "done":
        raise SystemExit(f"the job is {state}; nothing was measured")


def _state(sessions: Sessions, job: str) -> str:
    with sessions() as session:
        return session.get_one(Job, job).state


def _count_stored(sessions: Sessions, objects: Path) -> Stored:
    files = [path.stat().st_size for path in (objects / "calls").rglob("*.npz")]
    with sessions() as session:
        rows = session.scalar(select(func.count()).select_from(RecordedCall)) or 0
        size = session.scalar(select(func.pg_total_relation_size("recorded_calls"))) or 0
    return Stored(rows, size, len(files), sum(files))


def _normal(seed: bytes, size: int) -> NDArray[np.float32]:
    return np.random.default_rng(list(hashlib.sha256(seed).digest())).standard_normal(size, np.float32)


def _unit(seed: bytes) -> list[float]:
    vector = _normal(seed, WIDTH)
    unit: list[float] = (vector / np.linalg.norm(vector)).tolist()
    return unit


if __name__ == "__main__":
    main()
