"""Kill the embedded system at random moments: nothing is lost or duplicated, and no work is repeated."""

from __future__ import annotations

import csv
import io
import random
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa

from gateway.database.feedback_tables import Answer
from gateway.database.sessions import migrate, open_engine, open_sessions
from gateway.database.tables import Counterfactual, Prediction, RecordedCall, Report, SourceImage, Table
from gateway.operations.data_directory import stored_in
from shared.media.images import encode
from shared.media.storage import DirectoryStore
from tests.support.drawn_job import confirmable_job
from tests.support.http_jobs import finished
from tests.support.small_services import SmallServices, serve
from tests.support.threads import background
from tinyworld.objects.demo import write_demo

KILLS = 10
LIVES, RATERS = 5, 60  # of the test of follow-ups
IN_FLIGHT = 8
START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """What is sent as the shortest form, with an idempotency key, so that both runs give their things the same ids."""

    files: Sequence[tuple[str, bytes]]
    spec: str
    seconds: float

    def post(self, base_url: str) -> str:
        parts = [("images", (name, io.BytesIO(data), "image/png")) for name, data in self.files]
        parts.append(("spec", ("spec.json", io.BytesIO(self.spec.encode()), "application/json")))
        give_up = time.monotonic() + START_SECONDS
        while True:  # the models under test are listed once their service has loaded them
            reply = httpx.post(f"{base_url}/jobs", files=parts, headers={"Idempotency-Key": "kill"}, timeout=60)
            if reply.status_code != 503 or time.monotonic() > give_up:
                break
            time.sleep(1)
        assert reply.status_code == 202, reply.text
        return str(reply.json()["id"])


class Life:
    """One process over a directory, from its start to its kill."""

    def __init__(self, directory: Path, services_url: str | None) -> None:
        command = [sys.executable, "-m", "tests.support.embedded_process", str(directory)]
        self.log = (directory.parent / f"{directory.name}.log").open("ab")
        self._process = subprocess.Popen(
            [*command, services_url] if services_url else command, stdout=subprocess.PIPE, stderr=self.log
        )

    def base_url(self) -> str:
        """Where the gateway answers, once it does."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline().decode().strip() if ready else ""
        assert line, f"the system did not start; see {self.log.name}"
        return line

    def close(self) -> None:
        """SIGKILL: no handler, no cleanup, no last words."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.log.close()


def finish(directory: Path, services_url: str | None, job: Job) -> None:
    """Let the system on the directory run until the job is done."""
    with closing(Life(directory, services_url)) as life:
        url = life.base_url()
        job_id = job.post(url)
        with httpx.Client(base_url=url, timeout=120) as client:
            assert finished(client, f"/jobs/{job_id}", job.seconds)["state"] == "done"


def rows(directory: Path, table: type[Table], *columns: str) -> list[tuple[Any, ...]]:
    """All rows of a table, in the order of their keys."""
    engine = open_engine(f"sqlite:///{directory / 'contrafact.db'}")
    chosen = [table.__table__.c[name] for name in columns] or list(table.__table__.c)
    with engine.connect() as connection:
        records = connection.execute(sa.select(*chosen).order_by(*table.__table__.primary_key)).all()
    engine.dispose()
    return [tuple(row) for row in records]


def assert_equal(killed: Path, undisturbed: Path) -> None:
    """Everything that a job comes to is the same in both directories, and there exactly once."""
    for table in (Counterfactual, Prediction):
        assert rows(killed, table) == rows(undisturbed, table)
    columns = ("id", "job_id", "position", "digest", "state", "failure", "attempts")
    assert rows(killed, SourceImage, *columns) == rows(undisturbed, SourceImage, *columns)
    assert rows(killed, Report, "job_id", "metrics") == rows(undisturbed, Report, "job_id", "metrics")
    assert rows(killed, RecordedCall, "key", "reply") == rows(undisturbed, RecordedCall, "key", "reply")
    assert rows(killed, Counterfactual)


def kill_again_and_again(directory: Path, services_url: str | None, job: Job, longest_life: float) -> int:
    """Start and kill; some lives end before the gateway answers. Returns how many lives saw the job unfinished."""
    moments = random.Random(7)
    unfinished = 0
    for number in range(KILLS):
        with closing(Life(directory, services_url)) as life:
            if number % 4 == 3:
                time.sleep(moments.uniform(0.2, 2.0))
            else:
                job_id = job.post(url := life.base_url())
                unfinished += httpx.get(f"{url}/jobs/{job_id}", timeout=120).json()["state"] == "running"
                time.sleep(moments.uniform(0.0, longest_life))
    return unfinished


@pytest.mark.slow
def test_ten_kills_change_nothing_but_the_time_it_takes(tmp_path: Path) -> None:
    pictures = np.random.default_rng(3).integers(0, 255, (32, 12, 12, 3)).astype(np.uint8)
    spec = '{"task": "name the vehicle", "models": ["m1", "m2"], "ground_truth": "none"}'
    job = Job([(f"{n}.png", encode(picture)) for n, picture in enumerate(pictures)], spec, seconds=900)
    small = SmallServices(seconds=0.12)
    with serve(small) as url:
        finish(tmp_path / "undisturbed", url, job)
        undisturbed = small.calls.total()
        unfinished = kill_again_and_again(tmp_path / "killed", url, job, longest_life=0.5)
        finish(tmp_path / "killed", url, job)
    assert unfinished >= 5, "the kills came too late to mean anything"
    assert_equal(tmp_path / "killed", tmp_path / "undisturbed")
    repeated = small.calls.total() - 2 * undisturbed
    arms = Counter(rows(tmp_path / "undisturbed", Counterfactual, "source_image_id"))
    under_way = IN_FLIGHT * max(arms.values())  # an image's arms are rendered together, a call each
    assert repeated <= KILLS * under_way, "only calls that were under way at a kill may be made again"


def import_answers(url: str, study: str, items: Sequence[str], answer: str) -> None:
    """Send the same answer of many raters to each item, for as long as the system lives."""
    lines = [f"{rater},{item},{answer}" for rater in range(RATERS) for item in items]
    with suppress(httpx.TransportError):
        httpx.put(f"{url}/studies/{study}/answers.csv", content="\n".join(["rater,item,valid", *lines]), timeout=600)


@pytest.mark.slow
def test_kills_lose_nothing_of_a_confirmation_and_of_answers_that_come_in(tmp_path: Path) -> None:
    """All lines of a file of answers are stored or none, and a confirmation that is asked for again is the same job."""
    directory, moments = tmp_path / "killed", random.Random(3)
    directory.mkdir()
    engine = open_engine(stored_in(directory)["database_url"])
    migrate(engine)
    confirmable_job().restore(open_sessions(engine), DirectoryStore(directory / "objects"))
    engine.dispose()
    question = {"name": "valid", "kind": "yes_no", "text": "Is it right?"}
    request = {"questions": [question], "controls": 0, "attention": 0}
    study, items, confirmations = "", list[str](), set[str]()
    with serve(SmallServices(seconds=0.1)) as services_url:
        for number in range(LIVES):
            with closing(Life(directory, services_url)) as life:
                url = life.base_url()
                if not study:
                    study = httpx.post(f"{url}/jobs/drawn/studies", json=request, timeout=120).json()["id"]
                    listed = httpx.get(f"{url}/studies/{study}/items.csv", timeout=120).text
                    items = [row["item"] for row in csv.DictReader(io.StringIO(listed))]
                sending = partial(import_answers, url, study, items, ("yes", "no")[number % 2])
                with background(sending, release=life.close):
                    started = httpx.post(
                        f"{url}/jobs/drawn/confirmation", json={"confirm_with": "shifts"}, timeout=START_SECONDS
                    )
                    assert started.status_code == 202, started.text
                    confirmations.add(started.json()["id"])
                    time.sleep(moments.uniform(0, 2))
            answers = [str(content) for (content,) in rows(directory, Answer, "content")]
            assert (len(set(answers)), len(answers)) in ((0, 0), (1, RATERS * len(items)))
        with closing(Life(directory, services_url)) as life, httpx.Client(base_url=life.base_url()) as client:
            (confirmation,) = confirmations
            assert finished(client, f"/jobs/{confirmation}", 900)["state"] == "done"
    assert answers, "no file came in before its kill"


@pytest.mark.slow
def test_ten_kills_of_the_real_small_models(tmp_path: Path) -> None:
    write_demo(tmp_path / "images", ("bus", "car"), 1)
    files = [(path.name, path.read_bytes()) for path in sorted((tmp_path / "images").glob("*.png"))]
    parameters = '{"counterfactuals_per_image": 2, "max_keywords": 4, "alternatives_per_keyword": 2, "steps": 2}'
    spec = f'{{"task": "classify the vehicle", "methods": [{{"name": "dillema", "parameters": {parameters}}}]}}'
    job = Job(files, spec, seconds=1800)
    finish(tmp_path / "undisturbed", None, job)
    kill_again_and_again(tmp_path / "killed", None, job, longest_life=8.0)
    finish(tmp_path / "killed", None, job)
    assert_equal(tmp_path / "killed", tmp_path / "undisturbed")
