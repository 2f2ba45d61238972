"""Step 1 of every method that has a caption: the profile's captioner describes the source image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from gateway.methods.counterfactual import MethodImage
from shared.schemas.caption import CaptionRequest
from shared.service.endpoints import Services

IMAGE_DOMAIN = "a photo of"  # LANCE's


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
    """The caption begun with its domain ("a photo of"), so that an edit can change it."""
    domain = " ".join(domain.split())
    if not domain or caption.lower().startswith(domain.lower()):
        return caption
    words = caption.split(" ", 1)
    first_word = words[0].lower() if words[0].istitle() else words[0]  # but not "BMW"
    return " ".join([domain[0].upper() + domain[1:], first_word, *words[1:]])


CaptionDomain = Annotated[
    str | None,
    Field(
        max_length=500,
        description="Image domain, prepended to captions that name none. Default: `caption_prompt`, prepended to all.",
    ),
]


class DomainParameters(Protocol):
    """What the captioner is given, and what its captions begin with."""

    @property
    def caption_prompt(self) -> str: ...
    @property
    def caption_domain(self) -> str | None: ...


def begin_with_domain(caption: str, parameters: DomainParameters) -> str:
    """`with_domain` with the job's domain. Before a domain of its own, "The image shows" is left out."""
    domain = domain_of(caption, parameters)
    if domain and parameters.caption_domain is not None:
        caption = _SHOWS.sub("", caption)
    return with_domain(caption, domain)


def domain_of(caption: str, parameters: DomainParameters) -> str:
    """The domain that a caption should begin with; empty if it names its own."""
    if parameters.caption_domain is None:
        return parameters.caption_prompt
    return "" if names_style(caption) else parameters.caption_domain


_SHOWS = re.compile(r"^th(?:e|is) (?:image|picture|scene) (?:shows|depicts|features|captures|presents) ", re.IGNORECASE)
# No murals, posters and mosaics, which are things in the picture.
_MEDIUM = (
    r"(?:photo(?:graph|graphy)?|snapshot|painting|watercolou?r|drawing|sketch|illustration|cartoon|engraving|etching"
    r"|print|collage|comic|render(?:ing)?|screenshot|artwork)"
)
_STYLE = (
    r"(?:photo|realis|hyperrealis|documentary|paint|watercolou?r|drawn|hand-drawn|line-art|sketch|pencil|illustrat"
    r"|cartoon|comic|anime|3d|render|monochrom|black-and-white|pop-art)[\w-]*"
)
# Before the medium. A second article, a preposition, a participle or "and" belongs to a picture in the picture.
_ADJECTIVE = (
    r"(?:(?:black and white|pen and ink)"
    r"|(?!(?:an?|the|his|her|its|their|my|our|some|and|or|with|on|in|at|of|near|beside|behind|under|over|by|to|from)\b)"
    r"(?!\w+ing\b)[\w'-]+),? "
)
_PICTURE = r"(?:^|[.!?] )(?:it|this|th(?:e|is) (?:image|picture|scene))"
_NAMES_STYLE = re.compile(
    # "A black and white photo of", "This photograph shows": the medium opens the caption
    rf"^(?:(?:an?|the|this|here is an?) )?(?:{_ADJECTIVE}){{0,6}}?{_MEDIUM}(?: image| picture)?"
    r"(?: of\b| that\b| shows?\b| showing\b| depict| captur| featur| taken\b)"
    # "It is a watercolour painting", "The style is realistic", "in a realistic, documentary style."
    rf"|{_PICTURE} is an? (?:{_ADJECTIVE}){{0,3}}?{_MEDIUM}\b"
    r"|(?:^|[.!?] )(?:the|its) (?:[\w-]+ )?style (?:is|appears|looks|of th(?:e|is) (?:image|picture|scene))\b"
    rf"|\bin an? (?:[\w-]+,? ){{0,3}}?{_STYLE},?(?: [\w-]+)? style(?=\W*$|[.!?])",
    re.IGNORECASE,
)


def names_style(caption: str) -> bool:
    """Whether the caption says what kind of picture it describes, as captions by chat models often do.

    The kind opens the caption ("an oil painting of"), is said of the whole picture ("it is a photo"), or ends a
    sentence ("in a cartoon style"). A picture that somebody holds or takes is a thing in the picture.
    """
    return _NAMES_STYLE.search(caption) is not None
