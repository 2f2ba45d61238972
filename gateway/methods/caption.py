"""Step 1 of every method that has a caption: the profile's captioner describes the source image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class CaptionSampling:
    """How captions are sampled, as in `CaptionRequest`; greedy by default."""

    temperature: float = 0.0
    top_p: float = 1.0
    captions: int = 1
    seed: int = 0


def write_caption(
    image: MethodImage,
    services: Services,
    parameters: CaptionParameters,
    sampling: CaptionSampling = CaptionSampling(),
) -> str:
    """The caption of the source image, in one line; several captions are its sentences, equal ones once."""
    request = CaptionRequest(
        images=[image.image],
        prompt=parameters.caption_prompt,
        min_tokens=parameters.caption_min_tokens,
        max_tokens=parameters.caption_max_tokens,
        beams=parameters.caption_beams,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        captions_per_image=sampling.captions,
        seed=sampling.seed,
    )
    captions = dict.fromkeys(" ".join(caption.split()) for caption in services.caption(request).captions)
    return join_sentences(list(captions)) if sampling.captions > 1 else next(iter(captions))


def join_sentences(captions: Sequence[str]) -> str:
    """Captions one after the other, each with a full stop if it has no mark at its end; empty ones are left out."""
    return " ".join(caption if caption.endswith((".", "!", "?")) else f"{caption}." for caption in captions if caption)


def with_domain(caption: str, domain: str) -> str:
    """The caption begun with the domain that the captioner was given ("a photo of"), so that an edit can change it."""
    domain = " ".join(domain.split())
    if not domain or caption.lower().startswith(domain.lower()):
        return caption
    words = caption.split(" ", 1)
    first_word = words[0].lower() if words[0].istitle() else words[0]  # but not "BMW"
    return " ".join([domain[0].upper() + domain[1:], first_word, *words[1:]])
