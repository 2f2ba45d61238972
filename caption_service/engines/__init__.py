"""Caption engines: each entry of ENGINES is a function that creates a captioner from what is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from caption_service.engines.blip2 import load_blip2
from caption_service.engines.image_text_to_text import load_image_text_to_text
from caption_service.engines.openai import connect_openai
from shared.profiles.profile import Caption
from shared.schemas.caption import CaptionRequest
from shared.schemas.service import WeightsInfo
from shared.service.devices import Loading


class Captioner(Protocol):
    """The interface of every engine's captioner."""

    @property
    def device(self) -> str:
        """The device that the model runs on."""
        ...

    @property
    def weights(self) -> Sequence[WeightsInfo]:
        """Its entries of `/v1/info`."""
        ...

    async def caption(self, request: CaptionRequest, deadline: float) -> list[str]:
        """Return the captions of the images, in the order of `CaptionReply`.

        A caption depends on its image, the parameters and its seed, not on its neighbours.
        """
        ...


ENGINES: dict[str, Callable[[Loading[Caption]], Captioner]] = {
    "blip2": load_blip2,
    "image-text-to-text": load_image_text_to_text,
    "openai": connect_openai,
}
