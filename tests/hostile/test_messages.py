"""Hostile requests sent directly to the model services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from shared.schemas.base import MAX_MESSAGE_BYTES
from tests.support.hostile.messages import BOUNDED, MESSAGES, ODD_PICTURES, STRIP, TINY, HostileMessage
from tests.support.hostile.refusals import assert_refused
from tests.support.hostile.small_services import APPS, serve_small, write_weights

pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Client]]:
    profile = write_weights(tmp_path_factory.mktemp("services"))
    with (
        serve_small("caption_service", profile) as caption,
        serve_small("llm_service", profile) as llm,
        serve_small("diffusion_service", profile) as diffusion,
        serve_small("evaluator_service", profile) as evaluator,
    ):
        yield dict(zip(APPS, (caption, llm, diffusion, evaluator), strict=True))


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: f"{case.path} {case.name}")
def test_a_hostile_message_is_refused_with_a_reason(clients: dict[str, httpx.Client], case: HostileMessage) -> None:
    headers = {"Content-Type": "application/json"}
    reply = clients[case.service].post(case.path, content=case.body, headers=headers)
    assert_refused(reply, case.status, case.words)


@pytest.mark.parametrize("image", [TINY, STRIP], ids=["1 × 1", "1 × 50"])
@pytest.mark.parametrize("name", ODD_PICTURES)
def test_the_smallest_and_the_thinnest_picture_go_through(
    clients: dict[str, httpx.Client], name: str, image: dict[str, str]
) -> None:
    path, body = ODD_PICTURES[name]
    reply = clients[name].post(path, json=body(image))
    assert reply.status_code == 200, reply.text


@pytest.mark.slow
def test_a_body_beyond_the_limit_is_not_read(clients: dict[str, httpx.Client]) -> None:
    for client in clients.values():
        path = next(path for path in client.get("/openapi.json").json()["paths"] if path.count("/") == 2)
        reply = client.post(path, content=iter([bytes(1024**2)] * (MAX_MESSAGE_BYTES // 1024**2 + 8)))
        assert_refused(reply, 413, f"larger than {MAX_MESSAGE_BYTES} bytes")


def test_a_schema_that_cannot_be_followed_harms_no_neighbour(clients: dict[str, httpx.Client]) -> None:
    def ask(schema: object) -> httpx.Response:
        messages = [{"role": "user", "content": "Say it."}]
        return clients["llm_service"].post("/v1/generate", json={"messages": messages, "json_schema": schema})

    impossible = {"type": "integer", "minimum": 5, "maximum": 1}
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(ask, [BOUNDED, impossible] * 6))
    assert [reply.status_code for reply in replies] == [200, 422] * 6
    assert all(len(json.loads(reply.content)["value"]) <= 4 for reply in replies[::2])
