"""The model services of an embedded system answer local callers, but no web page."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI

from embedded.run import LocalCallers
from tests.support.listening import listen

FOREIGN = [
    {"Host": "rebound.example:8001"},
    {"Host": "rebound.example"},
    {"Origin": "https://pages.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    app = FastAPI()

    @app.post("/v1/squares")
    def squares() -> str:
        return "answered"

    app.add_middleware(LocalCallers)
    with listen(app) as url:
        yield url


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_gets_no_answer(service: str, headers: dict[str, str]) -> None:
    reply = httpx.post(f"{service}/v1/squares", headers=headers, trust_env=False, timeout=60)
    assert reply.status_code == 403
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert "answered" not in reply.text


def test_a_page_whose_name_was_made_to_mean_this_machine_may_not_read_either(service: str) -> None:
    headers = {"Host": "rebound.example"}
    assert httpx.get(f"{service}/openapi.json", headers=headers, trust_env=False, timeout=60).status_code == 403
    assert httpx.get(f"{service}/openapi.json", trust_env=False, timeout=60).status_code == 200


def test_gateway_and_worker_are_answered(service: str) -> None:
    port = service.rpartition(":")[2]
    for url in (service, f"http://localhost:{port}"):
        assert httpx.post(f"{url}/v1/squares", trust_env=False, timeout=60).status_code == 200
