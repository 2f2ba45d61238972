"""Requests to a small diffusion_service."""

from __future__ import annotations

from typing import Any

import numpy as np

from shared.media.images import Pixels, decode, encode
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import Rendering, RenderRequest

RANDOM = np.random.default_rng(6)


def photo(width: int = 64, height: int = 64) -> ImagePayload:
    """Noise of this size."""
    return ImagePayload(png=encode(RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)))


def pixels(image: ImagePayload | None) -> Pixels:
    """A reply's image; fails where it was not finite."""
    assert image is not None
    return decode(image.png)


def request(source: ImagePayload, *renderings: Rendering, **changes: Any) -> RenderRequest:
    return RenderRequest(source=source, renderings=list(renderings), **{"steps": 2, **changes})
