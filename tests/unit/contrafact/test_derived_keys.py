"""The same request twice has one idempotency key; another one, or a key of one's own, has another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from rich.console import Console

from contrafact.client import Client
from contrafact.job_files import submit_job
from shared.media.images import encode
from shared.problems import Problem
from shared.schemas.jobs import JobSpec


@pytest.fixture
def key_of(tmp_path: Path) -> Callable[..., str | None]:
    """The key that a submission sends."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(encode(np.zeros((4, 4, 3), np.uint8)))

    def sent(key: str | None = None, **spec: object) -> str | None:
        keys: list[str | None] = []

        def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                keys.append(request.headers.get("idempotency-key"))
                return httpx.Response(404, json={})
            return httpx.Response(200)

        job = JobSpec.model_validate({"task_description": "name", **spec})
        client = Client("http://gateway", transport=httpx.MockTransport(answer))
        with pytest.raises(Problem):
            submit_job(client, job, [folder], None, [], key, Console(quiet=True))
        client.close()
        return keys[0]

    return sent


def test_the_key_is_that_of_the_request(key_of: Callable[..., str | None]) -> None:
    first = key_of()
    assert first is not None
    assert key_of() == first
    assert key_of(seed=1) != first
    assert key_of("own") == "own"
