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
from tests.support.caption_requests import ask, payloads
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


@pytest.mark.slow
def test_a_vision_server_captions_each_image(profile: Path) -> None:
    async def main() -> None:
        async with serving(create_app(settings(profile))) as client:
            images = payloads(3)
            captions = await ask(client, images, min_tokens=0)
            again = await ask(client, images, min_tokens=0)
            refusal = await client.post(
                "/v1/captions", json={"images": [images[0].model_dump(mode="json")], "beams": 2}
            )
        assert captions == again
        assert len(set(captions)) > 1
        assert refusal.status_code == 422
        assert "has no beam search" in refusal.json()["detail"]

    asyncio.run(main())
