"""A new method takes one short file and one line in METHODS."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest

from embedded.run import run_embedded
from gateway.methods import METHODS
from shared.media.images import encode
from shared.schemas.service import SERVICES
from tests.support import seventh_method
from tests.support.http_jobs import finished
from tests.support.small_services import SmallServices, serve

PICTURES = np.random.default_rng(9).integers(0, 255, (4, 16, 16, 3)).astype(np.uint8)
SPEC = (
    b'{"task": "name the vehicle", "methods": [{"name": "sepia", "parameters": {"steps": 3, "thresholds": {}}}], '
    b'"models": ["m1"], "ground_truth": "none"}'
)


@pytest.mark.slow
def test_a_seventh_method_of_under_60_lines_runs_through_the_public_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Path(seventh_method.__file__).read_text(encoding="utf-8").splitlines()
    assert len(lines) + 1 < 60, "with its line in METHODS"
    monkeypatch.setitem(METHODS, "sepia", seventh_method.SPEC)
    with (
        serve(SmallServices()) as url,
        run_embedded(tmp_path, service_urls=dict.fromkeys(SERVICES, url)) as system,
        httpx.Client(base_url=system.base_url, timeout=60) as client,
    ):
        (listed,) = [method for method in client.get("/methods").json()["methods"] if method["name"] == "sepia"]
        assert listed["parameters"]["properties"]["phrase"]["default"] == "in sepia"
        thresholds = listed["parameters"]["properties"]["thresholds"]["default"]
        assert thresholds["structure"]["default"] > 0, "the profile's thresholds are filled in"
        files = [("images", (f"{n}.png", encode(picture), "image/png")) for n, picture in enumerate(PICTURES)]
        posted = client.post("/jobs", files=[*files, ("spec", ("", SPEC, "application/json"))])
        assert posted.status_code == 202, posted.text
        job = posted.json()["id"]
        finished(client, f"/jobs/{job}")
        page = client.get(f"/jobs/{job}/results", params={"method": "sepia", "value": "sepia"}).json()
        report = client.get(f"/jobs/{job}/report").text
        wrong = client.post(
            "/jobs", files=[*files, ("spec", ("", SPEC.replace(b"steps", b"stops"), "application/json"))]
        )
    assert len(page["counterfactuals"]) == 4
    for row in page["counterfactuals"]:
        assert row["changes"][0]["factor"] == "domain"
        assert row["new_caption"].endswith("in sepia")
        assert None not in (row["image"], row["null_image"])
        assert row["scores"]["structure"] == 1.0
        (prediction,) = row["predictions"]
        assert None not in (prediction["original"], prediction["null_arm"], prediction["counterfactual"])
    (result,) = page["metrics"]["results"]
    assert {effect["cell"]["value"] for effect in result["cells"]} == {"sepia"}
    assert page["metrics"]["costs"][0]["evaluations"] == 4 * 2 * 3
    assert "sepia" in report
    assert wrong.status_code == 422
    assert "stops" in wrong.json()["detail"]
