"""Requests to a small caption_service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.service.endpoints import Services
from tests.support.serving import call


def payloads(count: int) -> list[ImagePayload]:
    """Pictures of different sizes and colours."""
    random = np.random.default_rng(3)
    pictures = [np.full((40 + 8 * index, 64, 3), random.integers(0, 200, 3), np.uint8) for index in range(count)]
    for picture in pictures:
        picture += random.integers(0, 50, picture.shape, dtype=np.uint8)
    return [ImagePayload(png=encode(picture)) for picture in pictures]


async def ask(client: httpx.AsyncClient, images: Sequence[ImagePayload], **changes: Any) -> list[str]:
    request = CaptionRequest(images=list(images), max_tokens=12, min_tokens=4).model_copy(update=changes)
    return (await call(client, Services.caption, request)).captions
