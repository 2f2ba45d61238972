"""A gateway with the suite `street` and the runs of a sound and a weak model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.suite_site import SOURCES, add_job, predict


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with serve_gateway(tmp_path_factory.mktemp("gateway")) as served:
        add_job(served)
        reply = served.client.post("/suites", json={"job": "made", "name": "street"})
        assert reply.status_code == 201, reply.text
        yield served


@pytest.fixture(scope="module")
def runs(gateway: Gateway) -> dict[str, str]:
    """The runs of a sound model and a weak one."""
    ids = {}
    for model, weak in (("m1", False), ("m2", True)):
        wakes = len(gateway.wakes)
        reply = gateway.client.post("/suites/street/runs", json={"model": model})
        assert reply.status_code == 202, reply.text
        assert len(gateway.wakes) == wakes + 1
        ids[model] = reply.json()["id"]
        view = gateway.client.get(reply.headers["Location"]).json()
        assert (view["state"], view["model"], view["revision"]) == ("running", model, "1")
        assert view["progress"]["images"]["waiting"] == 2 * SOURCES
        assert gateway.client.get(f"/suites/street/runs/{ids[model]}/results").status_code == 409
        predict(gateway, ids[model], weak)
    return ids
