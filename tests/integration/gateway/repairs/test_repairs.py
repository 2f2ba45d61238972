"""Repairs whose trainer dies: the next one resumes from the last checkpoint and ends with the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select, update
from torch import Tensor, equal

from evaluator_service.models_under_test.kinds.classification import TrainableClassifier
from evaluator_service.repair_worker import Trainer
from gateway.database.sessions import Sessions, database_now, migrate, open_engine, open_sessions
from gateway.database.tables import LOCAL_OWNER, Repair
from gateway.repairs.dispatch import MAX_DEATHS, check_repairs, record_deaths, revoke_leases
from gateway.repairs.orders import load as load_rows
from gateway.repairs.orders import order_of
from gateway.settings import Settings
from shared.media.storage import DirectoryStore, model_key, repair_key
from shared.problems import DeviceFailed
from shared.profiles.weights import REPOSITORY
from shared.schemas.repairs import Heartbeat, RepairLease, RepairOutcome, RepairProgress, RepairRequest, StoredModel
from tests.support.repair_site import add_job, keep_model, weights_in, write_day_classifier
from tests.support.work_site import wait_for

REQUEST = RepairRequest(model="day", steps=32, batch_size=8, learning_rate=5e-3)
SETTINGS = Settings(max_lost_leases=3)
TRAIN = """
import sys
from pathlib import Path
from evaluator_service.repair_worker import Trainer
from shared.schemas.repairs import RepairLease
from shared.media.storage import DirectoryStore
lease = RepairLease(repair=sys.argv[2], token=sys.argv[3])
Trainer(DirectoryStore(Path(sys.argv[1])), "tiny", "cpu", beat_seconds=0.2).work(lease)
"""


class Site:
    """A job, a model, and repairs of it."""

    def __init__(self, sessions: Sessions, folder: Path) -> None:
        self.sessions, self.folder = sessions, folder / "objects"
        self.store = DirectoryStore(self.folder)
        self.leases: list[RepairLease] = []
        add_job(sessions, self.store)
        write_day_classifier(folder / "day", steps=20)
        package = keep_model(self.store, folder / "day", "day")
        self.model = StoredModel(key=model_key(package.digest, "day"), digest=package.digest)

    def add(self, repair: str) -> None:
        with self.sessions.begin() as session:
            originals, counterfactuals = load_rows(session, "made")
            order = order_of(repair, "made", REQUEST, "apache-2.0", self.model, originals, counterfactuals)
            self.store.put(repair_key(repair, "order.json"), order.model_dump_json().encode())
            session.add(
                Repair(
                    id=repair,
                    owner_id=LOCAL_OWNER,
                    job_id="made",
                    model="day",
                    request=REQUEST,
                )
            )

    def look(self, send: Callable[[RepairLease], None] | None = None) -> list[RepairLease]:
        """What is given out when a worker looks."""
        before = len(self.leases)
        check_repairs(self.sessions, self.store, self.leases.append, SETTINGS)
        new = self.leases[before:]
        for lease in new:
            if send is not None:
                send(lease)
        return new

    def row(self, repair: str) -> Repair:
        with self.sessions() as session:
            return session.scalars(select(Repair).where(Repair.id == repair)).one()

    def silence(self, seconds: float) -> None:
        """Let time pass in which nothing was heard."""
        with self.sessions.begin() as session:
            session.execute(update(Repair).values(heard_at=database_now(-seconds)))

    def trainer_writes(self, lease: RepairLease, name: str, content: str) -> None:
        self.store.put(repair_key(lease.repair, lease.token, name), content.encode())

    def weights(self, repair: str, arm: str) -> dict[str, Tensor]:
        return weights_in(self.store.get(repair_key(repair, arm, "model.tar")))


@pytest.fixture
def site(sessions: Sessions, tmp_path: Path) -> Site:
    return Site(sessions, tmp_path)


def trainer(site: Site) -> Trainer:
    return Trainer(site.store, "tiny", "cpu", beat_seconds=0.2)


@pytest.mark.slow
def test_a_trainer_killed_midway_is_followed_by_one_that_ends_in_the_same_weights(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'contrafact.db'}")
    migrate(engine)
    site = Site(open_sessions(engine), tmp_path)
    site.add("aa")
    site.look(trainer(site).work)  # undisturbed
    site.look()
    site.add("bb")
    (first,) = site.look()
    started = [sys.executable, "-c", TRAIN, str(site.folder), "bb", first.token]
    with subprocess.Popen(started, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            wait_for((site.folder / "repairs" / "bb" / "repaired" / "checkpoint.tar").exists, beat=0.01)
        finally:
            process.kill()
    assert not site.store.exists(repair_key("bb", "augmented", "judged.json"))
    assert site.look() == []  # heard
    site.silence(SETTINGS.lease_seconds + 1)
    (second,) = site.look()
    assert second.token != first.token
    trainer(site).work(first)  # an old message: its lease has ended
    assert not site.store.exists(repair_key("bb", first.token, "outcome.json"))
    trainer(site).work(second)
    site.look()
    undisturbed, resumed = site.row("aa"), site.row("bb")
    assert (undisturbed.state, resumed.state) == ("done", "done")
    for arm in ("repaired", "originals", "null", "augmented"):
        mine, other = site.weights("aa", arm), site.weights("bb", arm)
        assert all(equal(mine[name], other[name]) for name in mine), arm
    assert undisturbed.result is not None
    assert resumed.result is not None
    assert undisturbed.result.sets == resumed.result.sets
    engine.dispose()


@pytest.mark.slow
def test_what_an_older_trainer_writes_is_not_read(site: Site) -> None:
    site.add("aa")
    (old,) = site.look()
    site.trainer_writes(old, "progress.json", Heartbeat(beat=1).model_dump_json())
    assert site.look() == []
    assert site.look() == []  # quiet, but not for long
    site.silence(SETTINGS.lease_seconds + 1)
    (new,) = site.look()
    site.trainer_writes(old, "outcome.json", RepairOutcome(problem="late").model_dump_json())
    assert site.look() == []
    assert (site.row("aa").state, site.row("aa").failure) == ("running", "")
    site.trainer_writes(new, "outcome.json", RepairOutcome(problem="it cannot be").model_dump_json())
    site.look()
    assert (site.row("aa").state, site.row("aa").failure) == ("failed", "it cannot be")
    assert site.look() == []


@pytest.mark.slow
def test_progress_is_heard_and_silence_without_it_ends_the_repair(site: Site) -> None:
    site.add("aa")
    for number in range(SETTINGS.max_lost_leases):
        (lease,) = site.look()
        heartbeat = Heartbeat(beat=1, done=4 if number == 0 else 0, total=128, arm="repaired")
        site.trainer_writes(lease, "progress.json", heartbeat.model_dump_json())
        assert site.look() == []
        if number == 0:
            assert site.row("aa").progress == RepairProgress(done=4, total=128, arm="repaired")
        site.silence(SETTINGS.lease_seconds + 1)
    assert site.look() == []
    assert site.row("aa").state == "failed"
    assert "without making progress" in site.row("aa").failure


@pytest.mark.slow
def test_a_message_may_wait_in_line_and_a_new_start_gives_out_anew(site: Site) -> None:
    site.add("aa")
    (first,) = site.look()
    site.silence(SETTINGS.lease_seconds + 1)
    assert site.look() == []  # nobody has begun: it waits behind others
    site.silence(301)
    (second,) = site.look()
    with site.sessions.begin() as session:
        revoke_leases(session)
    (third,) = site.look()
    assert len({first.token, second.token, third.token}) == 3
    assert site.row("aa").lost == 0


@pytest.mark.slow
def test_a_repair_in_which_the_whole_process_dies_is_not_begun_for_ever(site: Site) -> None:
    """An embedded system that a repair killed gave it out anew at each start."""
    for repair in ("aa", "bb"):
        site.add(repair)
    for death in range(MAX_DEATHS):
        begun, _waiting = site.look()
        heartbeat = Heartbeat(beat=1, done=4, total=128, arm="repaired")
        site.trainer_writes(begun, "progress.json", heartbeat.model_dump_json())
        if death == 0:
            site.look()  # its progress was heard; an orderly stop is no death
            with site.sessions.begin() as session:
                revoke_leases(session)
            begun, _waiting = site.look()
            site.trainer_writes(begun, "progress.json", heartbeat.model_dump_json())
        with site.sessions.begin() as session:
            record_deaths(session, site.store)
    assert [lease.repair for lease in site.look()] == ["bb"]
    assert (site.row("aa").state, site.row("bb").lost) == ("failed", 0)
    assert "memory" in site.row("aa").failure


@pytest.mark.slow
def test_a_repair_that_cannot_be_processed_fails_and_the_others_continue(site: Site) -> None:
    for repair in ("aa", "bb"):
        site.add(repair)
    first, second = site.look()
    site.trainer_writes(first, "progress.json", "no heartbeat")
    site.trainer_writes(second, "outcome.json", RepairOutcome(problem="it cannot be").model_dump_json())
    site.look()
    assert [(site.row(repair).state, bool(site.row(repair).failure)) for repair in ("aa", "bb")] == [
        ("failed", True)
    ] * 2
    assert site.row("bb").failure == "it cannot be"


@pytest.mark.slow
def test_a_repair_whose_model_is_gone_fails(site: Site) -> None:
    site.add("aa")
    site.store.delete(site.model.key)
    site.look(trainer(site).work)
    site.look()
    assert site.row("aa").state == "failed"
    assert "is gone" in site.row("aa").failure


@pytest.mark.slow
def test_a_broken_accelerator_is_not_the_repair_s_failure(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    monkeypatch.setattr(TrainableClassifier, "__init__", break_down)
    site.add("aa")
    (lease,) = site.look()
    with pytest.raises(DeviceFailed, match="ECC"):
        trainer(site).work(lease)
    assert site.look() == []
    assert (site.row("aa").state, site.row("aa").failure) == ("running", "")
