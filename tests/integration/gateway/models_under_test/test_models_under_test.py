"""The embedded system with a real evaluator: uploaded models in new jobs, and added to a finished one."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from embedded.run import Embedded, run_embedded
from evaluator_service.app import create_app
from shared.schemas.service import SERVICES
from shared.service.settings import ServiceSettings
from tests.support.archives import zipped
from tests.support.http_jobs import finished
from tests.support.listening import listen
from tests.support.small_evaluator import CLASSES, write_scorer
from tests.support.small_packages import hub_files, onnx_files
from tests.support.small_profile import write_profile
from tests.support.small_services import SmallServices, serve

SPEC = {
    "task": "classify the vehicle",
    "design": "free",
    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 2}}],
}


class System:
    """An embedded system whose evaluator is real; what else its methods ask is small and counts its calls."""

    def __init__(self, embedded: Embedded, small: SmallServices, hub: dict[str, bytes], onnx: dict[str, bytes]) -> None:
        self.small, self.hub, self.onnx, self.directory = small, hub, onnx, embedded.directory
        self.client = httpx.Client(base_url=embedded.base_url, timeout=120)

    def upload(self, files: dict[str, bytes], **spec: Any) -> httpx.Response:
        """`POST /models` of a zip."""
        parts = {"model": ("model.zip", zipped(files, "my-model/")), "spec": ("spec", json.dumps(spec).encode())}
        return self.client.post("/models", files=parts)

    def finished_job(self, job: str) -> dict[str, Any]:
        """The job, once it is over."""
        view = finished(self.client, f"/jobs/{job}")
        assert view["state"] == "done", view
        return view

    def predictions(self, job: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Model and counterfactual → predictions for it, its original and its null arm."""
        shown = self.client.get(f"/jobs/{job}/results", params={"limit": 200}).json()["counterfactuals"]
        return {(prediction["model"], view["id"]): prediction for view in shown for prediction in view["predictions"]}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("models")
    write_scorer(folder / "scorer")
    profile = write_profile(folder)
    hub = hub_files(folder / "resnet")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ServiceSettings(
        profile=str(profile), device="cpu", threads=1, deterministic=True, model_origin=f"http://127.0.0.1:{port}"
    )
    small = SmallServices()
    with listen(create_app(settings)) as evaluator, serve(small) as url:
        urls = {**dict.fromkeys(SERVICES, url), "evaluator_service": evaluator}
        with run_embedded(folder / "data", str(profile), service_urls=urls, port=port) as embedded:
            system = System(embedded, small, hub, onnx_files(folder / "resnet"))
            with system.client:
                yield system


def images() -> list[tuple[str, tuple[str, bytes]]]:
    random = np.random.default_rng(3)
    files = []
    for number, label in enumerate(("car", "bus")):
        buffer = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (40, 56, 3), dtype=np.uint8)).save(buffer, "PNG")
        files.append(("images", (f"{label}-{number}.png", buffer.getvalue())))
    return files


@pytest.mark.slow
def test_an_uploaded_model_and_its_onnx_export_say_the_same_the_second_without_rendering_again(system: System) -> None:
    added = system.upload(system.hub, name="resnet", licence="MIT")
    assert added.status_code == 201, added.text
    view = added.json()
    assert (view["classes"], view["format"], view["uploaded"]) == (CLASSES, "safetensors", True)
    assert system.client.get(added.headers["Location"]).json() == view
    again = system.upload(system.hub, name="resnet")
    assert (again.status_code, again.json()["id"]) == (200, view["id"])
    exported = system.upload(system.onnx, name="resnet-onnx", classes=CLASSES)
    assert exported.status_code == 201, exported.text
    names = [model["name"] for model in system.client.get("/models").json()["models"]]
    assert names == ["resnet", "resnet-onnx"]

    labels = ("manifest", ("labels.csv", b"file,label\ncar-0.png,car\nbus-1.png,bus\n"))
    spec = ("spec", ("spec", json.dumps({**SPEC, "models": ["resnet"]}).encode()))
    started = system.client.post("/jobs", files=[*images(), labels, spec])
    assert started.status_code == 202, started.text
    job = started.json()["id"]
    assert system.finished_job(job)["models"] == ["resnet"]
    rendered = dict(system.small.calls)
    first = system.predictions(job)

    more = system.client.post(f"/jobs/{job}/models", json={"models": ["resnet-onnx"]})
    assert more.status_code == 202, more.text
    assert system.finished_job(job)["models"] == ["resnet", "resnet-onnx"]
    assert dict(system.small.calls) == rendered, "nothing was captioned, edited or rendered again"
    both = system.predictions(job)
    assert {key: prediction for key, prediction in both.items() if key[0] == "resnet"} == first
    assert len(both) == 2 * len(first) > 0
    for (model, counterfactual), prediction in both.items():
        if model == "resnet-onnx":
            for place in ("original", "null_arm", "counterfactual"):
                expected, other = prediction[place], both["resnet", counterfactual][place]
                assert expected["predicted"] == other["predicted"]
                assert expected["ground_truth_probability"] == pytest.approx(
                    other["ground_truth_probability"], abs=1e-5
                )
    metrics = system.client.get(f"/jobs/{job}/results").json()["metrics"]
    assert [result["model"] for result in metrics["results"]] == ["resnet", "resnet-onnx"]

    assert system.client.delete(f"/models/{view['id']}").status_code == 204
    assert system.client.get(f"/models/{view['id']}").status_code == 404
    assert len(list((system.directory / "objects" / "models").rglob("*.tar"))) == 1
    assert system.predictions(job) == both, "what was found about it stays"
    unknown = system.client.post(f"/jobs/{job}/models", json={"models": ["resnet"]})
    assert "'resnet'" in unknown.json()["detail"]


@pytest.mark.slow
def test_a_model_that_does_not_fit_the_job_is_not_added(system: System) -> None:
    renamed = system.upload(system.hub, name="vehicles", classes=["automobile", "coach", "ship"])
    assert renamed.status_code == 201, renamed.text
    spec: dict[str, object] = {**SPEC, "models": ["vehicles"]}
    labels = ("manifest", ("labels.csv", b"file,label\ncar-0.png,car\nbus-1.png,bus\n"))
    refusal = system.client.post("/jobs", files=[*images(), labels, ("spec", ("spec", json.dumps(spec).encode()))])
    assert refusal.status_code == 422
    assert refusal.json()["unknown_labels"] == ["bus", "car"]
    spec["label_map"] = {"car": "automobile", "bus": "coach"}
    mapped = system.client.post("/jobs", files=[*images(), labels, ("spec", ("spec", json.dumps(spec).encode()))])
    assert mapped.status_code == 202, mapped.text
    job = mapped.json()["id"]
    running = system.client.post(f"/jobs/{job}/models", json={"models": ["resnet-onnx"]})
    assert running.status_code in (409, 422)
    system.finished_job(job)
    other = system.client.post(f"/jobs/{job}/models", json={"models": ["resnet-onnx"]})
    assert other.status_code == 422
    assert "'automobile', 'coach'" in other.json()["detail"]
    twice = system.client.post(f"/jobs/{job}/models", json={"models": ["vehicles"]})
    assert "tests 'vehicles' already" in twice.json()["detail"]
    assert system.client.get(f"/jobs/{job}").json()["state"] == "done"


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_leaves_nothing(system: System) -> None:
    before = sorted((system.directory / "objects" / "models").rglob("*.tar"))
    other = {**system.hub, "config.json": system.hub["config.json"].replace(b'"basic"', b'"bottleneck"')}
    refusal = system.upload(other, name="broken")
    assert refusal.status_code == 422
    assert "config.json" in refusal.json()["detail"]
    assert sorted((system.directory / "objects" / "models").rglob("*.tar")) == before
    assert "broken" not in [model["name"] for model in system.client.get("/models").json()["models"]]
