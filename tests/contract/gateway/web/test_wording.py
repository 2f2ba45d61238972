"""What pages say where there is nothing to show."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_drawn_job(tmp_path_factory.mktemp("wording"), per_class=2) as served:
        yield served


def test_a_map_without_recorded_embeddings_says_so(gateway: Gateway) -> None:
    text = gateway.client.get("/jobs/drawn/map?verdict=rejected").text
    assert "No image with these filters has a recorded embedding." in text


def test_a_plan_without_labels_says_what_the_job_tests(gateway: Gateway) -> None:
    listed = json.dumps({"images": [{"digest": f"{1:064x}", "name": "a.png"}]})
    fields = {"task": "classify the vehicle", "methods": "dillema", "listed": listed}
    reply = gateway.client.post("/plan", data=fields, files={"manifest": ("", b"")})
    assert "None: the job tests whether predictions stay the same." in reply.text
