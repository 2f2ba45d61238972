"""The ways to get a caption: each engine is a function from profile to something that captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from caption_service.engines.blip2 import load_blip2
from caption_service.engines.image_text_to_text import load_image_text_to_text
from caption_service.engines.openai import connect_openai
from shared.profiles import Caption
from shared.schemas.caption import CaptionRequest
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher, ServiceSettings


class Captioner(Protocol):
    """What every engine yields."""

    @property
    def device(self) -> str:
        """Where the model runs."""
        ...

    @property
    def weights(self) -> Sequence[WeightsInfo]:
        """What `/v1/info` says of it."""
        ...

    async def caption(self, request: CaptionRequest, deadline: float) -> list[str]:
        """One caption per image; a caption depends on its image, the parameters and the seed, not on its neighbours."""
        ...


ENGINES: dict[str, Callable[[Caption, ServiceSettings, MakeBatcher], Captioner]] = {
    "blip2": load_blip2,
    "image-text-to-text": load_image_text_to_text,
    "openai": connect_openai,
}
