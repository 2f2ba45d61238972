"""A repair in an embedded system that is stopped halfway: after a restart it resumes and finishes once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrafact.client import Client
from embedded.run import run_embedded
from gateway.database.sessions import migrate, open_engine, open_sessions
from shared.media.storage import DirectoryStore
from shared.profiles.profile import shipped_profiles
from shared.profiles.weights import REPOSITORY
from shared.schemas.repairs import RepairRequest, RepairView
from shared.schemas.service import SERVICES, ServiceName
from tests.support.repair_site import add_job, write_day_classifier
from tests.support.small_services import SmallServices, serve
from tests.support.work_site import wait_for

REQUEST = RepairRequest(model="m1", steps=80, batch_size=8, learning_rate=5e-3)
MODEL = '\n[evaluator.models_under_test.m1]\npath = "{path}"\nlicence = "Apache-2.0"\ngigabytes = 0.01\n'


def wait(client: Client, repair: str, until: Callable[[RepairView], bool]) -> RepairView:
    wait_for(lambda: until(client.repair(repair)), 900, explain=lambda: client.repair(repair))
    return client.repair(repair)


@contextlib.contextmanager
def running(place: Path, profile: str, urls: dict[ServiceName, str]) -> Iterator[Client]:
    with (
        run_embedded(place, profile, service_urls=urls) as system,
        contextlib.closing(Client(system.base_url)) as client,
    ):
        yield client


@pytest.mark.slow
def test_a_restarted_system_resumes_a_repair(tmp_path: Path) -> None:
    write_day_classifier(tmp_path / "day", steps=30)
    tiny = shipped_profiles()["tiny"].read_text(encoding="utf-8")
    rooted = tiny.replace('path = "tinyworld/', f'path = "{REPOSITORY.as_posix()}/tinyworld/')
    (tmp_path / "ours.toml").write_text(rooted + MODEL.format(path=(tmp_path / "day").as_posix()))
    place = tmp_path / "data"
    place.mkdir()
    engine = open_engine(f"sqlite:///{place / 'contrafact.db'}")
    migrate(engine)
    add_job(open_sessions(engine), DirectoryStore(place / "objects"))
    engine.dispose()
    with serve(SmallServices()) as url:
        urls = dict.fromkeys(SERVICES, url)
        profile = str(tmp_path / "ours.toml")
        with running(place, profile, urls) as client:
            repair = client.begin_repair("made", REQUEST).id
            begun = wait(client, repair, lambda view: view.progress.done > 0 or view.state != "running")
        assert begun.state == "running", begun.failure
        with running(place, profile, urls) as client:
            view = wait(client, repair, lambda view: view.state != "running")
            assert (view.state, view.failure) == ("done", "")
            assert view.result is not None
            assert {figures.set for figures in view.result.sets} >= {"originals", "counterfactuals"}
            assert client.repaired_model(repair)
