"""A detector beyond its job: suite, gate, JUnit, comparison and study, with the small services."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from contrafact.suite_commands import junit_document
from embedded.run import run_embedded
from shared.media.images import encode
from shared.schemas.service import SERVICES
from shared.schemas.suites import RunResults
from tests.support.archives import zipped
from tests.support.colour_detector import street
from tests.support.http_jobs import finished
from tests.support.small_services import DETECTOR, SmallServices, serve

SPEC: dict[str, Any] = {
    "task": "detect the vehicles",
    "models": [DETECTOR],
    "boxes": {"score": 0.99, "choose_scores": True},
    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 1, "steps": 2, "thresholds": {}}}],
    "design": "free",
}


def streets(count: int) -> dict[str, bytes]:
    files, rows = {}, []
    for number in range(count):
        pixels, boxes = street(number)
        files[f"images/{number:02}.png"] = encode(np.asarray(pixels))
        rows.append({"file": f"images/{number:02}.png", "boxes": [{"box": box[:4], "label": box[4]} for box in boxes]})
    return {**files, "manifest.jsonl": "\n".join(map(json.dumps, rows)).encode()}


@pytest.mark.slow
def test_a_detector_is_gated_compared_and_studied(tmp_path: Path) -> None:
    with (
        serve(SmallServices()) as services,
        run_embedded(tmp_path, service_urls=dict.fromkeys(SERVICES, services)) as system,
        httpx.Client(base_url=system.base_url, timeout=60) as client,
    ):
        parts = {
            "images": ("set.zip", zipped(streets(14), "set/"), "application/zip"),
            "spec": ("", json.dumps(SPEC).encode(), "application/json"),
        }
        job = finished(client, client.post("/jobs", files=parts).headers["Location"])
        (own,) = client.get(f"/jobs/{job['id']}/results").json()["metrics"]["results"]
        assert own["detection"]["chosen"]

        assert client.post("/suites", json={"job": job["id"], "name": "streets"}).status_code == 201
        run = client.post("/suites/streets/runs", json={"model": DETECTOR}).json()["id"]
        finished(client, f"/jobs/{run}")
        (again,) = client.get(f"/jobs/{run}/results").json()["metrics"]["results"]
        assert again["detection"]["scores"] == own["detection"]["scores"], "the same originals choose the same scores"
        assert again["detection"]["counterfactuals"] == own["detection"]["counterfactuals"]
        results = RunResults.model_validate(client.get(f"/suites/streets/runs/{run}/results").json())
        assert results.cells
        (suite,) = ElementTree.fromstring(junit_document(results, "streets"))
        assert int(suite.get("tests") or 0) == len(results.cells)

        compared = client.get(f"/jobs/{job['id']}/comparison", params={"other_job": run})
        assert compared.status_code == 200, compared.text

        question = {"name": "there", "text": "Is each marked object still there?", "label_kept": True}
        study = client.post(f"/jobs/{job['id']}/studies", json={"questions": [question], "controls": 0})
        assert study.status_code == 201, study.text
