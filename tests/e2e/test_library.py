"""`contrafact.test` in this process: a function that a corruption misleads, and what stays afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import contrafact
from contrafact import Client, JobFailed, MethodChoice, Outcome, SuiteFilters, SuiteRequest
from contrafact.maite import CounterfactualAugmentation, job_dataset, suite_dataset
from embedded.run import run_embedded
from shared.media.images import encode
from shared.schemas.jobs import JobDetail
from shared.schemas.service import SERVICES
from shared.service.model_service import LOADING
from tests.support.threads import run_together

IMAGES = [np.full((48, 48, 3), 80 + number, np.uint8) for number in range(14)]
BRIGHTER = MethodChoice(name="corruptions", parameters={"corruptions": ["brightness"]})

Surroundings = set[tuple[str, torch.dtype, bool]]

ENDS_EARLY = """
import sys
import numpy as np
import contrafact

class Broken(list):
    reads = 0
    def __getitem__(self, index):
        self.reads += 1
        if self.reads > 1 and sys.argv[2] == "data set":  # the first read is that of the model's trial
            raise RuntimeError("broken data set")
        return super().__getitem__(index)

def on_progress(job):
    if sys.argv[2] == "progress" and job.progress.fraction > 0:
        raise RuntimeError("broken progress")

pixels = np.full((48, 48, 3), 80, np.uint8)
contrafact.test(
    lambda images: ["dark"] * len(images), Broken([(pixels + number, "dark") for number in range(12)]),
    task="tell dark pictures from bright ones", classes=["dark", "bright"], directory=sys.argv[1],
    methods=["dillema"], outside_domain=True, on_progress=on_progress,
)
"""


def surroundings(caller: str) -> tuple[str, torch.dtype, bool]:
    """What the caller's code runs in: torch's default dtype, and whether a service loads weights."""
    return caller, torch.get_default_dtype(), LOADING.locked()


class Floats(torch.utils.data.Dataset[tuple[torch.Tensor | Path, str]]):
    """A file that does not exist, then the images as tensors of torch's default dtype.

    Reading all of them takes as long as loading a service.
    """

    def __init__(self, seen: Surroundings) -> None:
        self._seen = seen

    def __len__(self) -> int:
        return len(IMAGES) + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor | Path, str]:
        self._seen.add(surroundings("data set"))
        if index == 0:
            return Path("nowhere.png"), "dark"
        time.sleep(0.2)
        values = np.moveaxis(IMAGES[index - 1], -1, 0) / 255
        return torch.from_numpy(values).to(torch.get_default_dtype()), "dark"


@pytest.fixture(scope="module")
def progress() -> list[JobDetail]:
    return []


@pytest.fixture(scope="module")
def seen() -> Surroundings:
    return set()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, progress: list[JobDetail], seen: Surroundings) -> Outcome:
    """Brightness makes the model call dark images bright."""

    def dark_or_bright(images: Sequence[NDArray[np.uint8]]) -> list[str]:
        seen.add(surroundings("model"))
        return ["bright" if image.mean() > 128 else "dark" for image in images]

    return contrafact.test(
        dark_or_bright,
        Floats(seen),
        task="tell dark pictures from bright ones",
        methods=[BRIGHTER],
        classes=["dark", "bright"],
        directory=tmp_path_factory.mktemp("library"),
        on_progress=progress.append,
    )


def test_the_weakness_is_found(outcome: Outcome, progress: list[JobDetail]) -> None:
    """The least severity leaves every image below the model's threshold. The file that cannot be read is left out."""
    cells = {(finding.effect.cell.label, finding.effect.cell.value) for finding in outcome.findings}
    assert cells == {("dark", f"brightness {severity}") for severity in (2, 3, 4, 5)}
    assert {finding.effect.standing for finding in outcome.findings} == {"weakness"}
    assert outcome.failures == []
    assert progress[-1].state == "done"


@pytest.mark.slow
def test_no_service_loads_weights_while_the_caller_s_code_runs(outcome: Outcome, seen: Surroundings) -> None:
    """Loaders set the default dtype of the whole process."""
    assert seen == {(caller, torch.float32, False) for caller in ("data set", "model")}


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["data set", "progress"])
def test_a_process_ends_with_the_caller_s_own_error(broken: str, tmp_path: Path) -> None:
    """Python aborts if a process ends while a thread loads weights or computes a batch."""
    command = [sys.executable, "-c", ENDS_EARLY, str(tmp_path), broken]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stderr.splitlines()[-1] == f"RuntimeError: broken {broken}"
    assert done.returncode == 1


@pytest.mark.slow
def test_two_calls_at_once_run_one_after_another(tmp_path: Path) -> None:
    """One failed in a migration of the other's database, and left a thread that loaded weights."""

    jobs = []

    def call(name: str) -> None:
        outcome = contrafact.test(
            lambda images: ["dark"] * len(images),
            [(image, "dark") for image in IMAGES[:2]],
            task="tell dark pictures from bright ones",
            methods=[BRIGHTER],
            classes=["dark", "bright"],
            directory=tmp_path / name,
        )
        jobs.append(outcome.job)

    run_together(partial(call, "a"), partial(call, "b"))
    assert len(set(jobs)) == 2
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("load-", "serve "))]


@pytest.mark.slow
def test_the_outcome_needs_no_system(outcome: Outcome, tmp_path: Path) -> None:
    table = outcome.to_dataframe()
    assert len(table) == 5 * len(IMAGES)
    assert set(table["model"]) == {"model"}
    assert outcome.report(tmp_path / "report.html").read_text().startswith("<!doctype html>")
    shown = outcome.gallery(flipped=True)
    assert len(shown.views) > 0
    assert shown.save(tmp_path / "gallery.html").read_text().count("data:image/png") >= len(shown.views)


@pytest.mark.slow
def test_its_directory_serves_the_counterfactuals_to_maite(outcome: Outcome) -> None:
    nowhere = dict.fromkeys(SERVICES, "http://127.0.0.1:9")
    with run_embedded(outcome.directory, service_urls=nowhere) as system:
        client = Client(system.base_url)
        dataset = job_dataset(client, outcome.job)
        assert len(dataset) == 5 * len(IMAGES)
        assert dataset.metadata["index2label"] == {0: "dark", 1: "bright"}
        image, target, metadata = dataset[0]
        assert isinstance(image, np.ndarray)
        assert image.shape == (3, 48, 48)
        assert target.tolist() == [1, 0]
        assert metadata["to_value"] == "brightness 1"

        augment = CounterfactualAugmentation(client, outcome.job, ordinal=4)
        unknown = np.zeros((3, 5, 5), np.uint8)
        first: list[NDArray[Any]] = [np.moveaxis(IMAGES[0], -1, 0), np.moveaxis(IMAGES[1], -1, 0) / 255, unknown]
        changed, _, rows = augment((first, [[1, 0]] * 3, [{"id": 0}, {"id": 1}, {"id": 2}]))
        assert [str(np.asarray(image).dtype) for image in changed] == ["uint8", "float64", "uint8"]
        assert np.asarray(changed[0]).mean() > first[0].mean()
        assert np.asarray(changed[1]).mean() > first[1].mean()
        assert changed[2] is first[2]
        assert [row["id"] for row in rows] == [0, 1, 2]
        assert "counterfactual" in rows[0]
        assert "counterfactual" not in rows[2]
        severity = SuiteFilters(value="brightness 3")
        suite = client.create_suite(SuiteRequest(job=outcome.job, name="bright", filters=severity))
        client.delete(outcome.job)
        frozen = suite_dataset(client, suite.id, like=torch.zeros(()))
        stacked = torch.stack([cast(torch.Tensor, frozen[index][0]) for index in range(len(frozen))])
        assert 0.3 < float(stacked.min()) < float(stacked.max()) <= 1
        assert len(frozen) == suite.counterfactuals == len(IMAGES)
        assert {frozen[index][2]["to_value"] for index in range(len(frozen))} == {"brightness 3"}
        client.close()


@pytest.mark.slow
def test_a_model_that_fails_on_every_image_gives_its_reason(tmp_path: Path) -> None:
    calls: list[int] = []

    def broken(images: Sequence[NDArray[np.uint8]]) -> list[str]:
        calls.append(len(images))
        if len(calls) > 1:  # the first image is tried before the system starts
            raise RuntimeError("out of luck")
        return ["dark"] * len(images)

    with pytest.raises(JobFailed, match="out of luck"):
        contrafact.test(
            broken,
            [(image, "dark") for image in IMAGES[:2]],
            task="tell dark pictures from bright ones",
            methods=[BRIGHTER],
            classes=["dark", "bright"],
            directory=tmp_path,
        )


@pytest.mark.slow
def test_the_model_s_own_error_on_the_first_image_is_raised_before_anything_starts(tmp_path: Path) -> None:
    def broken(images: Sequence[NDArray[np.uint8]]) -> list[str]:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        contrafact.test(broken, [(IMAGES[0], "dark")], task="classify", classes=["a", "b"], directory=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["0.png", "2.png"], ids=["first", "later"])
def test_a_file_that_is_no_image_is_named(name: str, tmp_path: Path) -> None:
    """The model is tried on the first image in this process; the gateway reads the others."""
    folder = tmp_path / "dark"
    folder.mkdir()
    (folder / "1.png").write_bytes(encode(IMAGES[0]))
    (folder / name).write_bytes(b"junk")
    with pytest.raises(contrafact.Problem, match=f"dark/{name}"):
        contrafact.test(
            lambda images: ["dark"] * len(images),
            folder,
            task="tell dark pictures from bright ones",
            classes=["dark", "bright"],
            directory=tmp_path / "data",
        )
