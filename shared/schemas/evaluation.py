"""Contract of evaluator_service: predictions of models under test, embeddings, structure and shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    FiniteFloat,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from shared.schemas.base import KIND, MAX_BOXES, MAX_IMAGES_PER_MESSAGE, MAX_WORKING_SIDE, Contract, ImagePayload, Kind
from shared.schemas.masks import MAX_MASK_CLASSES, Label

Images = Annotated[list[ImagePayload], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE)]


class UploadedModel(Contract):
    """A model under test that a user uploaded: its package's SHA-256, and a URL at which it is available for a while.

    The URL does not affect the reply, so recorded calls leave it out.
    """

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    url: Annotated[str, Field(min_length=1, max_length=4_000)]

    @model_serializer(mode="wrap")
    def _to_wire(self, plain: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        values: dict[str, Any] = plain(self)
        if info.context and "images" in info.context:
            del values["url"]
        return values


class ModelRequest(Contract):
    """Images for one model under test: an alias of the profile, or an uploaded model by its digest."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    upload: UploadedModel | None = None
    images: Images

    @model_serializer(mode="wrap")
    def _to_wire(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = plain(self)
        if self.upload is None:  # calls recorded before uploads existed keep their keys
            del values["upload"]
        return values

    @model_validator(mode="after")
    def _named_by_digest(self) -> Self:
        if self.upload is not None and self.model != self.upload.digest:
            raise ValueError("an uploaded model is named by its digest; let `model` be the digest of `upload`")
        return self


class PredictRequest(ModelRequest):
    """`POST /v1/predictions`: predictions of one model under test on some images.

    `blind`: ask a model that is asked a question without the pictures, in the words that it gets with them.
    """

    blind: Annotated[bool, Field(exclude_if=lambda blind: not blind)] = False


Unanswered = Literal["refused", "unclear", "cut off"]


class TokenUsage(Contract):
    """The tokens of some `questions`, as their server counts them, and their `cost` at the profile's prices.

    `prompt`: of the questions with their pictures; `completion`: of the answers. `cost` is None without prices.
    """

    questions: int = 0
    prompt: int = 0
    completion: int = 0
    cost: float | None = None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return TokenUsage(
            questions=self.questions + other.questions,
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            cost=sum(costs) if costs else None,
        )

    def for_questions(self, questions: int) -> TokenUsage:
        """What so many questions take if each takes the mean of these, of which there is one or more."""
        share = questions / self.questions
        return TokenUsage(
            questions=questions,
            prompt=round(self.prompt * share),
            completion=round(self.completion * share),
            cost=None if self.cost is None else self.cost * share,
        )


class AskedQuestion(Contract):
    """The question of a model that is asked one, and the `usage` of its answers since the evaluator started."""

    question: str
    usage: TokenUsage


class PredictReply(Contract):
    """Softmax probabilities, one row per image, one column per class of `classes`.

    A model that is asked a question may give no answer: then why not stands in the row's place. `places` are those of
    its answers among the options of the question, from 0; None of other models. `usage`: of each question, where the
    server counts tokens.
    """

    classes: list[str]
    probabilities: list[list[float] | Unanswered]
    places: Annotated[list[int | None] | None, Field(exclude_if=lambda places: places is None)] = None
    usage: Annotated[list[TokenUsage | None] | None, Field(exclude_if=lambda usage: usage is None)] = None


class SegmentRequest(ModelRequest):
    """`POST /v1/segmentations`: the label maps of one segmenter under test on some images."""


class SegmentReply(Contract):
    """Per image a grey PNG of its size whose pixels are indices in `classes`."""

    classes: list[str]
    maps: list[ImagePayload]


class ExamineRequest(Contract):
    """`POST /v1/examinations`: load an uploaded model and try it; this lifts a quarantine.

    It is tried on a full batch of small images, and on one of `largest_side` × `largest_side` pixels.
    """

    upload: UploadedModel
    largest_side: Annotated[int, Field(ge=1, le=MAX_WORKING_SIDE)]


class ExamineReply(Contract):
    """Kind and classes of an uploaded model; a model that cannot be used is refused instead."""

    kind: Annotated[Kind, Field(validation_alias=KIND)]
    classes: list[str]


class ModelUnderTestInfo(Contract):
    """One model under test as `GET /v1/models` lists it."""

    name: str
    kind: Annotated[Kind, Field(validation_alias=KIND)]
    classes: list[str]
    weights: str
    revision: str
    licence: str
    description: str = ""
    uploaded: bool = False
    asked: Annotated[AskedQuestion | None, Field(exclude_if=lambda asked: asked is None)] = None


class QuarantinedModel(Contract):
    """An uploaded model that may not run until it is examined again: its package's SHA-256, and the reason."""

    digest: str
    reason: str


class ModelsReply(Contract):
    """`GET /v1/models`. `quarantined`: quarantined uploads of all owners."""

    models: list[ModelUnderTestInfo]
    quarantined: list[QuarantinedModel] = Field(default_factory=list)


class EmbedRequest(Contract):
    """`POST /v1/embeddings`: the scorer's (CLIP's) joint space."""

    images: Annotated[list[ImagePayload], Field(max_length=MAX_IMAGES_PER_MESSAGE)] = Field(default_factory=list)
    texts: Annotated[list[Annotated[str, Field(max_length=2_000)]], Field(max_length=256)] = Field(default_factory=list)


class EmbedReply(Contract):
    """L2-normalised embeddings; cosines are dot products. `logit_scale` multiplies cosines before a softmax."""

    images: list[list[float]]
    texts: list[list[float]]
    logit_scale: float


class DomainRequest(Contract):
    """`POST /v1/domain`: whether images are of the kind that the profile's models know."""

    images: Images


class DomainReply(Contract):
    """The log odds of each image to be outside the profile's domain; above 0 it is."""

    log_odds: list[float]


class EmbedTextsRequest(Contract):
    """`POST /v1/text-embeddings`: embeddings of words, phrases and sentences by a language-only model.

    A joint space of images and texts cannot tell single words apart; the text checks need a model that can.
    """

    texts: Annotated[list[Annotated[str, Field(max_length=2_000)]], Field(min_length=1, max_length=256)]


class EmbedTextsReply(Contract):
    """L2-normalised embeddings; cosines are dot products."""

    texts: list[list[float]]


class JudgeRequest(Contract):
    """`POST /v1/judgements`: questions about images that a vision-language judge answers with yes or no.

    `beside`: a picture that is shown before each image. `pairwise`: the questions ask which of the two it is, and each
    is asked in both orders, so that a judge that prefers a place chooses neither.
    """

    images: Images
    questions: Annotated[list[Annotated[str, Field(min_length=1, max_length=500)]], Field(min_length=1, max_length=8)]
    beside: Annotated[ImagePayload | None, Field(exclude_if=lambda beside: beside is None)] = None
    pairwise: Annotated[bool, Field(exclude_if=lambda pairwise: not pairwise)] = False

    @model_validator(mode="after")
    def _pair_of_two(self) -> Self:
        if self.pairwise and self.beside is None:
            raise ValueError("a pair has two pictures; send the other one as `beside`")
        return self


class JudgeReply(Contract):
    """Per image and question the probability of "yes" against "no", 0 to 1, or of the image against the one beside it.

    It is 0 or 1 if the server returns no log-probabilities (of a pair, the mean of both orders). Where the judge gives
    no answer, why not stands in its place. `usage`: of each image's questions, where the server counts tokens.
    """

    yes: list[list[float | Unanswered]]
    usage: Annotated[list[TokenUsage | None] | None, Field(exclude_if=lambda usage: usage is None)] = None


class StructureRequest(Contract):
    """`POST /v1/structure`: how much of the source's structure the other images keep, inside `mask` if given.

    `find_moves`: whether to look for moved images, too; their structure is that of the image moved back.
    """

    source: ImagePayload
    images: Images
    mask: ImagePayload | None = None
    find_moves: Annotated[bool, Field(exclude_if=lambda asked: not asked)] = False


class Move(Contract):
    """The zoom and shift that an editor gave an image: a place of the source is at centre + (place − centre) · `zoom` +
    shift in the image. `right` and `down` are pixels; `shown` is the share of the source that the image still shows.
    """

    zoom: float
    right: float
    down: float
    shown: float


class StructureReply(Contract):
    """Per image, the share of the source's edge pixels with an edge pixel of the image nearby, corrected for chance.

    1 means all of them, 0 no more than expected by chance. `moves`, if requested: that of each image, None if unmoved.
    """

    agreements: list[float]
    moves: Annotated[list[Move | None], Field(exclude_if=lambda moves: not moves)] = Field(default_factory=list)


class BoxedThing(Contract):
    """An object of the ground truth: its class, and its left, top, right and bottom in pixels."""

    label: Label
    box: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]


class ShapesRequest(Contract):
    """`POST /v1/shapes`: whether the shapes of a source image stayed in place in images derived from it.

    `mask` is grey: the index of each pixel's class in `classes`; other values are not judged. Without it, the
    segmenter's own map of the source is the reference. `things` are classes whose connected regions are each checked.
    With `boxes`, whose labels are among `classes`, only these are checked.
    """

    source: ImagePayload
    images: Images
    mask: ImagePayload | None = None
    classes: Annotated[list[Label], Field(min_length=1, max_length=MAX_MASK_CLASSES)]
    things: Annotated[list[Label], Field(max_length=MAX_MASK_CLASSES)] = Field(default_factory=list)
    boxes: Annotated[list[BoxedThing], Field(max_length=MAX_BOXES, exclude_if=lambda boxes: not boxes)] = Field(
        default_factory=list
    )

    @model_validator(mode="after")
    def _things_are_classes(self) -> Self:
        if unknown := sorted({*self.things, *(thing.label for thing in self.boxes)} - set(self.classes)):
            raise ValueError(f"things must be among the classes; {', '.join(map(repr, unknown))} are not")
        return self


class ThingRegion(Contract):
    """One connected region of a thing in the reference: its share of the image's area, and its box in pixels.

    `box` is left, top, right and bottom, the last two exclusive.
    """

    label: str
    share: float
    box: tuple[int, int, int, int]


class ShapesOutcome(Contract):
    """Shapes in one image: for each class of `judged` its IoU relative to that on the source, at most 1, and for each
    of `things` the IoU, 0 to 1. For each of the request's `boxes` the pixels of its class in it relative to those in
    the source, at most 1; None for one in which the segmenter does not see its class in the source."""

    classes: list[float]
    things: list[float]
    boxes: Annotated[list[float | None], Field(exclude_if=lambda boxes: not boxes)] = Field(default_factory=list)


class ShapesReply(Contract):
    """Result by the profile's segmenter; all lists are empty if the profile names none.

    `judged` are the classes that it detects in the source (IoU of at least 0.5), `unjudged` those of the reference that
    it does not detect there or has no label for. `things` are the regions that it detects in the source (same limit).
    """

    judged: list[str]
    unjudged: list[str]
    things: list[ThingRegion]
    outcomes: list[ShapesOutcome]
