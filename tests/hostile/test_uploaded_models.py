"""Uploaded models that mean harm, against a real evaluator: each is refused or stopped, and others are served."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from evaluator_service.models_under_test import uploads
from evaluator_service.models_under_test.quarantine import MAX_MARKS, Quarantine
from evaluator_service.models_under_test.sandbox import Spawner
from evaluator_service.models_under_test.uploads import CACHED, guard
from shared.problems import ModelStopped
from shared.schemas.evaluation import UploadedModel
from tests.support.hostile import models
from tests.support.small_evaluator import CLASSES, write_classifier, write_scorer
from tests.support.small_packages import hub_files
from tests.support.small_profile import write_profile
from tests.support.uploaded_models import GREY, LARGEST_SIDE, WHITE, Evaluator, PackageStore, evaluator, package_store

MEMORY, LOAD, BATCH = (f"CONTRAFACT_UPLOAD_{name}" for name in ("MEMORY_MIB", "LOAD_SECONDS", "BATCH_SECONDS"))
STOPPED = "urn:contrafact:problem:model-stopped"
KILLED = "urn:contrafact:problem:dependency-failed"
NOT_FINITE = "urn:contrafact:problem:not-finite"
Scenario = Callable[[Evaluator], Awaitable[None]]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked-evaluator")
    write_scorer(folder / "scorer")
    write_classifier(folder / "resnet", 1)
    path = write_profile(folder)
    alias = '[evaluator]\nmodels_under_test.own = { path = "resnet", licence = "MIT", gigabytes = 0.01 }\n'
    path.write_text(path.read_text().replace("[evaluator]\n", alias))
    return path


@pytest.fixture(scope="module")
def store() -> Iterator[PackageStore]:
    with package_store() as served:
        yield served


class SharedSpawner(Spawner):
    """Stays when an evaluator ends: what it imports takes longer than most tests."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    shared = SharedSpawner()
    yield shared
    Spawner.close(shared)


@pytest.fixture
def attack(
    profile: Path, store: PackageStore, spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Run a scenario against an evaluator with these settings, which must be healthy at the end."""
    monkeypatch.setattr(uploads, "Spawner", lambda: spawner)

    def run(scenario: Scenario, **settings: object) -> None:
        async def whole() -> None:
            async with evaluator(profile, store.url, tmp_path / "quarantine", **settings) as served:
                await scenario(served)
                assert await served.healthy()
                assert (await served.predict("own")).status_code == 200

        asyncio.run(whole())

    return run


def stopped(reply: httpx.Response, setting: str) -> None:
    assert reply.status_code == 422, reply.text
    problem = reply.json()
    assert (problem["type"], problem.get("setting")) == (STOPPED, setting), problem
    assert setting in problem["detail"]


def descendants() -> set[int]:
    """Ids of the processes that this one started, and of those that they started."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def state(pid: int) -> str:
    """R: on a processor or waiting for one, S: sleeping, Z: ended; empty: gone."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)


def test_files_that_ask_for_too_much_or_answer_nonsense_are_refused(
    attack: Callable[..., None], store: PackageStore
) -> None:
    growing = models.growing_with_the_batch()
    assert len(growing["model.onnx"]) < 400

    async def scenario(served: Evaluator) -> None:
        upload, unseen = store.add(growing), store.add(models.growing_unseen())
        reply = await served.examine(upload)
        stopped(reply, MEMORY)
        assert "'giant'" in reply.json()["detail"], "refused by its shapes"
        stopped(await served.examine(unseen), MEMORY)
        assert set(await served.quarantined()) == {upload.digest, unseen.digest}
        for files, words in ((models.not_a_number(), "NaN"), (models.looping(), "'Loop'")):
            reply = await served.examine(store.add(files))
            assert reply.status_code == 422, reply.text
            assert words in reply.json()["detail"]
        assert len(await served.quarantined()) == 2

    attack(scenario, upload_memory_mib=1500)


@pytest.mark.slow
def test_the_classes_of_a_model_in_another_order_are_refused(
    attack: Callable[..., None], store: PackageStore, tmp_path: Path
) -> None:
    """The names that the user gave replaced those in the files, so every prediction was of another class."""
    files = hub_files(tmp_path / "resnet")

    async def scenario(served: Evaluator) -> None:
        for names, status in ((CLASSES[::-1], 422), (CLASSES, 200), ([f"my {name}" for name in CLASSES], 200)):
            described = {**files, "contrafact.json": json.dumps({"classes": names}).encode()}
            reply = await served.examine(store.add(described))
            assert reply.status_code == status, reply.text
            assert ("another order" in reply.text) == (status == 422)

    attack(scenario)


@pytest.mark.slow
def test_a_configuration_beyond_its_weights_is_refused_in_time(
    attack: Callable[..., None], store: PackageStore, tmp_path: Path
) -> None:
    files = hub_files(tmp_path / "resnet")

    async def scenario(served: Evaluator) -> None:
        for name, changes in models.CONFIGS.items():
            config = {**json.loads(files["config.json"]), **changes}
            if "num_labels" in config:
                del config["id2label"], config["label2id"]
            reply = await served.examine(store.add({**files, "config.json": json.dumps(config).encode()}))
            assert reply.status_code == 422, (name, reply.text)
            assert reply.json()["type"] != STOPPED, "refused before a limit is met"
            assert "config.json" in reply.json()["detail"], (name, reply.text)

    attack(scenario, upload_load_seconds=30, upload_memory_mib=1500)


@pytest.mark.slow
def test_a_model_without_end_delays_no_other_model(attack: Callable[..., None], store: PackageStore) -> None:
    async def scenario(served: Evaluator) -> None:
        loop = await served.examine(store.add(models.looping()))
        assert loop.status_code == 422
        assert "'Loop'" in loop.json()["detail"]
        endless, harmless = store.add(models.never_ending()), store.add(models.brightness())
        loading = asyncio.create_task(served.examine(endless))
        assert (await served.examine(harmless)).status_code == 200
        while not loading.done():
            replies = await asyncio.gather(served.predict("own"), served.predict(harmless))
            assert [reply.status_code for reply in replies] == [200, 200]
        stopped(await loading, LOAD)

    attack(scenario, upload_load_seconds=10)


@pytest.mark.slow
def test_a_model_that_hangs_on_some_images_is_quarantined_until_it_is_examined_again(
    attack: Callable[..., None], store: PackageStore
) -> None:
    upload, harmless = store.add(models.never_ending_on_white()), store.add(models.brightness())

    async def hang(served: Evaluator) -> None:
        assert (await served.examine(upload)).status_code == 200
        assert (await served.predict(upload, GREY)).status_code == 200
        hanging = asyncio.create_task(served.predict(upload, WHITE))
        replies = [await served.predict("own"), await served.predict(harmless)]
        assert [reply.status_code for reply in replies] == [200, 200]
        stopped(await hanging, BATCH)
        running = descendants()
        refused = await served.predict(upload, GREY)
        assert (refused.status_code, refused.json()["quarantined"]) == (422, True)
        assert descendants() <= running, "it was not loaded"

    async def restarted(served: Evaluator) -> None:
        assert set(await served.quarantined()) == {upload.digest}
        assert (await served.predict(upload, GREY)).json()["quarantined"] is True
        assert (await served.examine(upload)).status_code == 200
        assert await served.quarantined() == {}
        assert (await served.predict(upload, GREY)).status_code == 200

    attack(hang, upload_batch_seconds=3)
    attack(restarted, upload_batch_seconds=3)


@pytest.mark.slow
def test_an_image_that_gives_nan_fails_alone(attack: Callable[..., None], store: PackageStore) -> None:
    async def scenario(served: Evaluator) -> None:
        upload = store.add(models.not_a_number_on_white())
        assert (await served.examine(upload)).status_code == 200
        good, bad = await asyncio.gather(served.predict(upload, GREY), served.predict(upload, WHITE))
        assert (good.status_code, bad.status_code) == (200, 500), (good.text, bad.text)
        assert bad.json()["type"] == NOT_FINITE
        assert await served.quarantined() == {}

    attack(scenario, max_wait_seconds=0.5)


@pytest.mark.slow
def test_an_image_that_gives_a_segmenter_nan_fails_alone(attack: Callable[..., None], store: PackageStore) -> None:
    async def scenario(served: Evaluator) -> None:
        upload = store.add(models.segmenter_not_a_number_on_white())
        assert (await served.examine(upload)).status_code == 200
        good, bad = await asyncio.gather(served.segment(upload, GREY), served.segment(upload, WHITE))
        assert (good.status_code, bad.status_code) == (200, 500), (good.text, bad.text)
        assert bad.json()["type"] == NOT_FINITE
        assert await served.quarantined() == {}

    attack(scenario, max_wait_seconds=0.5)


async def ended_while_it_runs(served: Evaluator, upload: UploadedModel, how: signal.Signals) -> httpx.Response:
    """The reply to a prediction without end whose process gets a signal."""
    before = descendants()
    assert (await served.predict(upload, GREY)).status_code == 200
    (pid,) = descendants() - before
    await until(lambda: state(pid) == "S")
    running = asyncio.create_task(served.predict(upload, WHITE))
    await until(lambda: state(pid) == "R")
    os.kill(pid, how)
    return await running


def test_a_model_whose_process_dies_is_quarantined(attack: Callable[..., None], store: PackageStore) -> None:
    async def scenario(served: Evaluator) -> None:
        upload, other = store.add(models.never_ending_on_white()), store.add(models.brightness())
        assert (await served.examine(other)).status_code == 200
        stopped(await ended_while_it_runs(served, upload, signal.SIGSEGV), MEMORY)
        assert (await served.predict(upload, GREY)).json()["quarantined"] is True
        assert (await served.predict(other)).status_code == 200

    attack(scenario)


@pytest.mark.slow
def test_a_model_whose_process_is_killed_from_outside_is_quarantined_the_third_time(
    attack: Callable[..., None], store: PackageStore, tmp_path: Path
) -> None:
    upload = store.add(models.never_ending_on_white())
    mark = tmp_path / "quarantine" / upload.digest

    def marks() -> int:
        with suppress(FileNotFoundError, ValueError):  # it is being written
            return int(json.loads(mark.read_bytes())["marks"])
        return 0

    async def scenario(served: Evaluator) -> None:
        assert (await served.predict(store.add(models.brightness()))).status_code == 200
        replies = [await ended_while_it_runs(served, upload, signal.SIGKILL)]
        while len(replies) < MAX_MARKS:
            assert await served.quarantined() == {}
            before = descendants()
            running = asyncio.create_task(served.predict(upload, WHITE))
            await until(lambda: marks() > len(replies))
            (pid,) = descendants() - before
            os.kill(pid, signal.SIGKILL)
            replies.append(await running)
        for reply in replies:
            assert (reply.status_code, reply.json()["type"]) == (502, KILLED), reply.text
            assert MEMORY in reply.json()["detail"]
        refused = await served.predict(upload, GREY)
        assert (refused.status_code, refused.json()["quarantined"]) == (422, True)
        assert "killed from outside" in (await served.quarantined())[upload.digest]

    attack(scenario)


@pytest.mark.slow
def test_batches_that_wait_for_a_killed_process_leave_no_mark(attack: Callable[..., None], store: PackageStore) -> None:
    upload = store.add(models.never_ending_on_white())

    async def scenario(served: Evaluator) -> None:
        assert (await served.predict(store.add(models.brightness()))).status_code == 200
        before = descendants()
        assert (await served.predict(upload, GREY)).status_code == 200
        (pid,) = descendants() - before
        await until(lambda: state(pid) == "S")
        running = asyncio.create_task(served.predict(upload, WHITE))
        await until(lambda: state(pid) == "R")
        waiting = [asyncio.create_task(served.predict(upload, GREY)) for _ in range(MAX_MARKS)]
        while await served.waiting() < len(waiting):
            await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        assert (await running).status_code == 502
        for reply in await asyncio.gather(*waiting):
            assert reply.status_code in (200, 502), reply.text
        assert await served.quarantined() == {}
        assert (await served.predict(upload, GREY)).status_code == 200

    attack(scenario, max_batch=1)


@pytest.mark.slow
def test_a_model_whose_memory_grows_with_the_image_is_refused_before_a_job(
    attack: Callable[..., None], store: PackageStore, tmp_path: Path
) -> None:
    write_classifier(tmp_path / "wide", 1, embedding_size=128)
    files = {path.name: path.read_bytes() for path in (tmp_path / "wide").iterdir()}
    growing = store.add({**files, "preprocessor_config.json": models.PADS_TO_MULTIPLES_OF_128})
    resizing = store.add(files)

    async def scenario(served: Evaluator) -> None:
        assert (await served.examine(resizing)).status_code == 200
        before = descendants()
        assert (await served.predict(growing, GREY)).status_code == 200
        reply = await served.examine(growing)
        stopped(reply, MEMORY)
        assert f"{LARGEST_SIDE:,} × {LARGEST_SIDE:,} pixels" in reply.json()["detail"]
        assert "image processor" in reply.json()["detail"]
        await until(lambda: descendants() <= before)  # a quarantined model keeps no memory

    attack(scenario, upload_memory_mib=1500)


@pytest.mark.slow
def test_no_more_processes_stay_than_are_cached_and_none_after_the_end(
    attack: Callable[..., None], store: PackageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "Spawner", Spawner)
    before, started = descendants(), set[int]()

    async def scenario(served: Evaluator) -> None:
        uploads = [
            store.add({**models.brightness(), "preprocessor_config.json": json.dumps({"number": number}).encode()})
            for number in range(CACHED + 2)
        ]
        for upload in uploads:
            assert (await served.predict(upload)).status_code == 200
            started.update(descendants() - before)
        assert len(started) == len(uploads) + 1, "one for each, and the one that they are forked from"
        await until(lambda: len(descendants() - before) == CACHED + 1)
        assert (await served.predict(uploads[0])).status_code == 200, "it is started again"
        started.update(descendants() - before)

    attack(scenario)
    asyncio.run(until(lambda: all(state(pid) in ("", "Z") for pid in started)))


def test_a_model_during_which_the_service_ended_repeatedly_is_quarantined(tmp_path: Path) -> None:
    digest = "a" * 64
    for _ in range(MAX_MARKS):
        quarantine = Quarantine(str(tmp_path))  # as after a restart
        quarantine.refuse(digest)
        assert quarantine.entries() == []
        quarantine.mark(digest)
    with pytest.raises(ModelStopped):
        quarantine.refuse(digest)
    assert [model.digest for model in quarantine.entries()] == [digest]
    quarantine.clear(digest)
    quarantine.refuse(digest)
    quarantine.mark(digest)
    quarantine.clear(digest)
    quarantine.mark(digest)
    quarantine.refuse(digest)


def test_a_model_that_loads_and_then_ends_the_service_is_quarantined(tmp_path: Path) -> None:
    digest = "a" * 64
    for _ in range(MAX_MARKS):
        quarantine = Quarantine(str(tmp_path))  # as after a restart
        quarantine.refuse(digest)
        with guard(quarantine, digest, quarantine.unmark):
            pass  # the load
        quarantine.mark(digest)
    with pytest.raises(ModelStopped):
        quarantine.refuse(digest)
