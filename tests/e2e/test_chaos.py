"""Kill every program of a deployed system at random moments: nothing is lost, duplicated or left over.

A job is done undisturbed, deleted, and cleared away; the same request under the same key then names everything alike.
While it is done again, programs are killed: gateway, workers, model services, Redis (which loses messages), Postgres
(which recovers from its log) and the S3 server. What the job comes to must be equal, row for row. KILLS and SEED in the
environment (`make chaos KILLS=500 SEED=3`) make it another run.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from contrafact.client import Client
from gateway.database.tables import Counterfactual, Event, Image, Prediction, RecordedCall, Report, SourceImage, Table
from gateway.operations.housekeeping import Graces, run_housekeeping
from shared.media.images import encode
from shared.media.storage import call_key, image_key
from shared.problems import Problem
from shared.schemas.jobs import JobDetail, JobSpec
from tests.support.archives import zipped
from tests.support.deployment import TINY, Deployment, deployed, small
from tests.support.processes import Program
from tinyworld.objects.demo import write_demo

KILLS = int(os.environ.get("KILLS", "60"))
SEED = int(os.environ.get("SEED", "1"))
AT_ONCE = Graces(0, 0)
PATIENCE_SECONDS = 1800.0
PAUSED, QUICK = "3600", "0.02"
QUICK_LEASES = {
    "CONTRAFACT_LEASE_SECONDS": "8",
    "CONTRAFACT_LEASE_RENEWAL_SECONDS": "1.5",
    "CONTRAFACT_SWEEP_SECONDS": "1",
    "CONTRAFACT_PAUSE_SECONDS": "0.3",
    "CONTRAFACT_SERVICE_WAIT_SECONDS": "30",
    "CONTRAFACT_IMAGES_IN_FLIGHT": "4",
}

Value = TypeVar("Value")


@dataclass(frozen=True)
class Submission:
    """A job to be made again and again: under one key, so that its things always have the same ids."""

    archive: Path
    images: int
    spec: JobSpec

    @classmethod
    def of(cls, directory: Path, pictures: Sequence[bytes], spec: JobSpec) -> Submission:
        archive = directory / "pictures.zip"
        archive.write_bytes(zipped({f"{number}.png": picture for number, picture in enumerate(pictures)}))
        return cls(archive, len(pictures), spec)

    def post(self, client: Client) -> JobDetail:
        return client.create_from_archive(self.spec, self.archive, None, key="chaos")


@dataclass(frozen=True)
class Outcome:
    """Everything that a job comes to, by table: rows in the order of their keys."""

    rows: Mapping[str, Sequence[tuple[Any, ...]]]

    @classmethod
    def read(cls, deployment: Deployment) -> Outcome:
        chosen: dict[type[Table], Sequence[str]] = {
            Counterfactual: (),
            Prediction: (),
            SourceImage: ("id", "position", "digest", "state", "failure", "attempts"),
            RecordedCall: ("key", "reply"),
            Report: ("job_id", "metrics"),
        }
        with deployment.sessions() as session:
            rows = {
                table.__tablename__: [
                    tuple(row)
                    for row in session.execute(
                        sa.select(*([table.__table__.c[name] for name in names] or table.__table__.c)).order_by(
                            *table.__table__.primary_key
                        )
                    )
                ]
                for table, names in chosen.items()
            }
            events = session.execute(sa.select(Event.kind, Event.payload).order_by(Event.sequence)).all()
        rows["events"] = sorted((kind, json.dumps(payload, sort_keys=True)) for kind, payload in events)
        return cls(rows)


class Chaos:
    """Who kills what, when: each program equally often, in an order and at moments that follow from the seed."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self.deployment = deployment
        self.moments = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.line: list[Program] = []

    def kill_one(self) -> None:
        """Kill the next program; now and then the others are left in peace until it is back."""
        if not self.line:
            self.line = list(self.deployment.programs.values())
            self.moments.shuffle(self.line)
        program = self.line.pop()
        if not program.alive:
            program.wait()
        time.sleep(self.moments.uniform(0.0, 1.0))
        program.kill()
        self.killed[program.name] += 1
        time.sleep(self.moments.choice([0.0, 0.0, 0.5]))
        program.start()
        self.deployment.restart_dead()
        if self.moments.random() < 0.4:
            program.wait()


def patiently(look: Callable[[], Value], deployment: Deployment) -> Value:
    """What is seen once nothing is in the way; programs that ended by themselves are started meanwhile."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return look()
        except (Problem, DBAPIError):
            assert time.monotonic() < give_up, "the system did not come back"
            deployment.restart_dead()
            time.sleep(0.3)


def recorded_calls(deployment: Deployment) -> int:
    """How far the work has come, in recorded calls of the model services."""
    with deployment.sessions() as session:
        return session.scalar(sa.select(sa.func.count()).select_from(RecordedCall)) or 0


@contextmanager
def paced_services(chaos: Chaos, calls: int, kills: int, pace: Callable[[bool], None]) -> Iterator[list[float]]:
    """Hold the services still where the job is ahead of the kills; yields the shares of the calls that were seen."""
    ended = threading.Event()
    shares: list[float] = []

    def watch() -> None:
        while not ended.wait(0.1):
            try:
                shares.append(recorded_calls(chaos.deployment) / calls)
            except DBAPIError:
                continue
            pace(shares[-1] > chaos.killed.total() / kills)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield shares
    finally:
        ended.set()
        thread.join()
        pace(False)


def finish(deployment: Deployment, submission: Submission) -> None:
    job = patiently(lambda: submission.post(deployment.client), deployment).id
    give_up = time.monotonic() + PATIENCE_SECONDS
    while (now := patiently(lambda: deployment.client.job(job), deployment)).state == "running":
        assert time.monotonic() < give_up, f"the job did not finish: {now.progress}"
        deployment.restart_dead()
        time.sleep(0.3)
    assert now.state == "done"
    assert now.progress.images.done == submission.images, now.failures


def clear_away(deployment: Deployment, submission: Submission) -> None:
    """Delete the job; then nothing of it must be left, neither row nor object."""
    deployment.client.delete(submission.post(deployment.client).id)
    run_housekeeping(deployment.sessions, deployment.store, AT_ONCE)
    assert there(deployment) == set()
    with deployment.sessions() as session:
        for table in (Image, RecordedCall, Counterfactual, Prediction, Report):
            assert session.scalar(sa.select(sa.func.count()).select_from(table)) == 0, table


def there(deployment: Deployment) -> set[str]:
    """The objects that the store lists and has: after a kill, Swift's listings lag behind its objects for a while."""
    return {item.key for item in deployment.store.iterate() if deployment.store.exists(item.key)}


def no_orphans(deployment: Deployment) -> None:
    """After housekeeping without grace the store holds what rows refer to, and all of it."""
    run_housekeeping(deployment.sessions, deployment.store, AT_ONCE)
    with deployment.sessions() as session:
        expected = {image_key(digest) for digest in session.scalars(sa.select(Image.digest))}
        expected |= set(session.scalars(sa.select(Report.object_key)))
        used = set(session.scalars(sa.select(SourceImage.digest))) | set(
            session.scalars(sa.select(Counterfactual.image_digest))
        )
        used |= set(session.scalars(sa.select(Counterfactual.control_digest)))
        vectors = {call_key(key) for key in session.scalars(sa.select(RecordedCall.key))}
    assert there(deployment) <= expected | vectors
    assert all(deployment.store.exists(key) for key in expected)
    assert {image_key(digest) for digest in used if digest} == {key for key in expected if key.startswith("images/")}


def run(deployment: Deployment, submission: Submission, kills: int, pace: Callable[[bool], None]) -> None:
    """The whole trial; `pace(True)` holds the services still."""
    pace(False)
    finish(deployment, submission)
    undisturbed = Outcome.read(deployment)
    clear_away(deployment, submission)
    chaos = Chaos(deployment, SEED)
    began = time.monotonic()
    job = patiently(lambda: submission.post(deployment.client), deployment).id
    progress = []
    with paced_services(chaos, len(undisturbed.rows["recorded_calls"]), kills, pace) as shares:
        for _ in range(kills):
            chaos.kill_one()
            progress.append(shares[-1] if shares else 0.0)
        state = patiently(lambda: deployment.client.job(job), deployment).state
    lasted = time.monotonic() - began
    finish(deployment, submission)
    seconds = time.monotonic() - began
    lost = lost_leases(deployment)
    print(
        f"{sum(chaos.killed.values())} kills in {lasted:.0f} s (seed {SEED}): {dict(sorted(chaos.killed.items()))}; "
        f"job {state} after the last, finished after {seconds:.0f} s; share of its calls made at each quarter of "
        f"the kills {[round(progress[len(progress) * quarter // 4], 2) for quarter in range(4)]}; {lost} leases lost "
        f"over {submission.images} images, none of them failed"
    )
    assert sum(share < 1.0 for share in progress) > 0.8 * kills, "the kills came too late to mean anything"
    after = Outcome.read(deployment)
    assert after.rows["counterfactuals"]
    for table, rows in undisturbed.rows.items():
        assert after.rows[table] == rows, f"{table} differ"
    no_orphans(deployment)
    clear_away(deployment, submission)


def lost_leases(deployment: Deployment) -> int:
    with deployment.sessions() as session:
        return session.scalar(sa.select(sa.func.sum(SourceImage.lost_leases))) or 0


@pytest.mark.slow
def test_kills_change_nothing_but_the_time_it_takes(tmp_path: Path) -> None:
    pictures = np.random.default_rng(3).integers(0, 255, (16, 12, 12, 3)).astype(np.uint8)
    spec = JobSpec(task_description="name the vehicle", models=["m1", "m2"], ground_truth="none")
    submission = Submission.of(tmp_path, [encode(picture) for picture in pictures], spec)
    seconds = tmp_path / "seconds"
    seconds.write_text(QUICK)

    def pace(paused: bool) -> None:
        unfinished = tmp_path / "seconds.part"
        unfinished.write_text(PAUSED if paused else QUICK)
        unfinished.replace(seconds)

    with deployed(tmp_path, small(seconds), workers=2, environment=QUICK_LEASES) as deployment:
        run(deployment, submission, KILLS, pace)


@pytest.mark.slow
def test_kills_of_the_real_small_models_change_nothing(tmp_path: Path) -> None:
    write_demo(tmp_path / "images", ("bus", "car"), 2)
    parameters = {"counterfactuals_per_image": 2, "max_keywords": 4, "alternatives_per_keyword": 2, "steps": 2}
    methods = [{"name": "dillema", "parameters": parameters}]
    spec = JobSpec.model_validate({"task": "classify the vehicle", "methods": methods, "seed": SEED})
    submission = Submission.of(
        tmp_path, [path.read_bytes() for path in sorted((tmp_path / "images").glob("*.png"))], spec
    )
    environment = {**QUICK_LEASES, "CONTRAFACT_LEASE_SECONDS": "30", "CONTRAFACT_SERVICE_WAIT_SECONDS": "300"}
    with deployed(tmp_path, TINY, environment=environment) as deployment:
        run(deployment, submission, 9, lambda paused: None)
