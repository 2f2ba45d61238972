"""evaluator_service: predictions of models under test, embeddings of images and texts, structure agreement."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload

Images = Annotated[list[ImagePayload], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE)]


class PredictRequest(Contract):
    """`POST /v1/predictions`: what one model under test says of some images."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    images: Images


class PredictReply(Contract):
    """Softmax probabilities, one row per image, one column per class of `classes`."""

    classes: list[str]
    probabilities: list[list[float]]


class ModelUnderTestInfo(Contract):
    """One model under test as `GET /v1/models` lists it."""

    name: str
    task: str
    classes: list[str]
    weights: str
    revision: str
    licence: str
    description: str = ""


class ModelsReply(Contract):
    """`GET /v1/models`."""

    models: list[ModelUnderTestInfo]


class EmbedRequest(Contract):
    """`POST /v1/embeddings`: the scorer's (CLIP's) joint space."""

    images: Annotated[list[ImagePayload], Field(max_length=MAX_IMAGES_PER_MESSAGE)] = Field(default_factory=list)
    texts: Annotated[list[Annotated[str, Field(max_length=2_000)]], Field(max_length=256)] = Field(default_factory=list)


class EmbedReply(Contract):
    """L2-normalised embeddings; cosines are dot products. `logit_scale` multiplies cosines before a softmax."""

    images: list[list[float]]
    texts: list[list[float]]
    logit_scale: float


class EmbedTextsRequest(Contract):
    """`POST /v1/text-embeddings`: words, phrases and sentences by a model of language alone.

    A joint space of images and texts cannot tell single words apart; the text checks need one that can.
    """

    texts: Annotated[list[Annotated[str, Field(max_length=2_000)]], Field(min_length=1, max_length=256)]


class EmbedTextsReply(Contract):
    """L2-normalised embeddings; cosines are dot products."""

    texts: list[list[float]]


class StructureRequest(Contract):
    """`POST /v1/structure`: how much of the source's structure the other images kept, inside `mask` when given."""

    source: ImagePayload
    images: Images
    mask: ImagePayload | None = None


class StructureReply(Contract):
    """Per image, the share of the source's edge pixels with an edge pixel of the image nearby, corrected for chance.

    1 is all of them, 0 no more than any place has by chance.
    """

    agreements: list[float]
