"""caption_service in front of `transformers serve`, a real OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from caption_service.app import create_app
from tests.support.caption_requests import payloads
from tests.support.http_jobs import wait_until_ready
from tests.support.service_settings import settings
from tests.support.serving import serving
from tests.support.small_models import save_llava
from tests.support.small_profile import write_profile


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A profile whose captioner asks a running server."""
    folder = tmp_path_factory.mktemp("vision")
    save_llava(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder / "model")]
    arguments = ["--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*serve, *arguments], stdout=log, stderr=log, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(f"{url}/health", server, folder / "log")
        yield write_profile(folder, caption_engine="openai", url=f"{url}/v1", model=str(folder / "model"))
    finally:
        server.terminate()
        server.wait(120)


def refusal(problem: dict[str, object]) -> str:
    """The detail of a refusal."""
    assert problem["type"] == "urn:contrafact:problem:unusable-reply"
    assert "gave a caption that is cut off" in str(problem["detail"])
    return str(problem["detail"])


@pytest.mark.slow
def test_a_vision_server_sees_each_image(profile: Path) -> None:
    """Untrained weights hardly ever end a sentence: most replies are refused, with their first words in the refusal."""

    async def main() -> None:
        async with serving(create_app(settings(profile))) as client:
            images = [image.model_dump(mode="json") for image in payloads(3)]

            async def answers() -> list[str]:
                bodies = [{"images": [image], "min_tokens": 0} for image in images]
                replies = [await client.post("/v1/captions", json=body) for body in bodies]
                return [
                    reply.json()["captions"][0] if reply.status_code == 200 else refusal(reply.json())
                    for reply in replies
                ]

            first = await answers()
            again = await answers()
            beams = await client.post("/v1/captions", json={"images": images[:1], "beams": 2})
        assert first == again
        assert len(set(first)) > 1
        assert beams.status_code == 422
        assert "has no beam search" in beams.json()["detail"]

    asyncio.run(main())
