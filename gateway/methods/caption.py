"""Step 1 of every method that has a caption: the profile's captioner describes the source image."""

from __future__ import annotations

from typing import Protocol

from gateway.methods.counterfactual import MethodImage
from shared.endpoints import Services
from shared.schemas.caption import CaptionRequest


class CaptionParameters(Protocol):
    """The captioner's parameters, common to all methods with a caption."""

    @property
    def caption_prompt(self) -> str: ...
    @property
    def caption_min_tokens(self) -> int: ...
    @property
    def caption_max_tokens(self) -> int: ...
    @property
    def caption_beams(self) -> int: ...


def write_caption(image: MethodImage, services: Services, parameters: CaptionParameters) -> str:
    """The caption of the source image, in one line."""
    request = CaptionRequest(
        images=[image.image],
        prompt=parameters.caption_prompt,
        min_tokens=parameters.caption_min_tokens,
        max_tokens=parameters.caption_max_tokens,
        beams=parameters.caption_beams,
    )
    return " ".join(services.caption(request).captions[0].split())


def with_domain(caption: str, domain: str) -> str:
    """The caption begun with the domain that the captioner was given ("a photo of"), so that an edit can change it."""
    domain = " ".join(domain.split())
    if not domain or caption.lower().startswith(domain.lower()):
        return caption
    words = caption.split(" ", 1)
    first_word = words[0].lower() if words[0].istitle() else words[0]  # but not "BMW"
    return " ".join([domain[0].upper() + domain[1:], first_word, *words[1:]])
