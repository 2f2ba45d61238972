"""Requests to a small diffusion_service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shared.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import Rendering, RenderReply, RenderRequest
from tests.support.small_diffusion import write_diffusion, write_segmenter
from tests.support.small_profile import write_profile

RANDOM = np.random.default_rng(6)


SEGMENTER = """[diffusion]
max_batch = 4
keep_labels = ["object"]
segmenter = { path = "segmenter", licence = "none", gigabytes = 0.01 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diffusion")
    write_diffusion(folder)
    write_segmenter(folder / "segmenter")
    plain = write_profile(folder).read_text()
    (folder / "blind.toml").write_text(plain)
    (folder / "small.toml").write_text(plain.replace("[diffusion]\n", SEGMENTER))
    return folder


def photo(width: int = 64, height: int = 64) -> ImagePayload:
    """Noise of this size."""
    return ImagePayload(png=encode(RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)))


def request(source: ImagePayload, *renderings: Rendering, **changes: Any) -> RenderRequest:
    return RenderRequest(source=source, renderings=list(renderings), **{"steps": 2, **changes})


async def render(client: httpx.AsyncClient, body: RenderRequest) -> RenderReply:
    reply = await client.post("/v1/renderings", content=body.model_dump_json())
    assert reply.status_code == 200, reply.text
    return RenderReply.model_validate_json(reply.content)
