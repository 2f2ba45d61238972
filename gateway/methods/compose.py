"""Compose: the object of an image on other backgrounds, at other sizes and places, mirrored. No caption, no generator.

1 name the backgrounds that have no value, and choose some, of as many values as there are
2 propose one change each: a background, a size, a place, or the mirror image
3 cut the object out by its mask, and paste it; its own background is filled behind it
4 if the job asks for it, check that the scorer still names the class, since a mask may miss a part

The null arm is the same paste at the object's own place on its own background. A background's value comes from the
user, from the class of its image ("boat scene"), or from its caption (`background_values`). Xiao, Engstrom, Ilyas and
Madry (arXiv 2006.09994) showed that backgrounds alone mislead classifiers; their sets mix backgrounds of the same and
of other classes.

The value of a background that has no name: the captioner describes it, and the language model says what it shows.

The question is DILLEMA's step 2, which lists a caption's phrases with factor and value; the value is that of the first
phrase of the background, else of another factor. The question does not depend on the source image, so a background has
one value in the whole job, and its caption and reply are recorded once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from gateway.methods.arms import RenderedArm, compare_arms, rows
from gateway.methods.checks import LABEL, LABEL_CHECK, RENDERED_CHECKS, ImageSignals, judge, skipped_checks
from gateway.methods.counterfactual import (
    ACCEPTED,
    UNKNOWN,
    Background,
    Change,
    Edit,
    Exchange,
    Lineage,
    MethodCounterfactual,
    MethodImage,
    MethodParameters,
    Scores,
    TaskDescription,
    Thresholds,
    Verdict,
    scene_of,
)
from gateway.methods.dillema import KEYWORDS, keyword_messages, keyword_schema
from gateway.methods.image_scores import embed_images
from gateway.methods.questions import InvalidReply, ask
from gateway.methods.schedule import Inputs, Proposal, accepted_edits
from gateway.methods.text_checks import check_keyword
from shared.characters import visible
from shared.chunks import chunks
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.diffusion import MOST_BACKGROUNDS, ComposeRequest, Composition, Place, Scale
from shared.service.endpoints import Services

MOST_PHRASES = 6
# A photograph of a place alone has the place as its subject.
_FACTORS = ("background", "weather", "subject", "object", "other", "domain", "adjective")


def compose(
    image: MethodImage, task: TaskDescription, services: Services, parameters: ComposeParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image: backgrounds, sizes, places and mirror image, then their null arm.

    A composition that the service refuses (no object, or none that fits there) has no image. Raises what the services
    raise.
    """
    inputs, questions = name_backgrounds(Inputs("compose", REVISION, image, task, services, parameters, seed))
    backgrounds = choose_backgrounds(inputs)  # 1
    pastes = [*background_pastes(inputs, backgrounds), *moved_pastes(inputs)]  # 2
    outcomes = compose_images(inputs, [*pastes, NULL])  # 3
    proposals = [
        propose(inputs, paste, outcome, questions.get(paste.background, ()))
        for paste, outcome in zip(pastes, outcomes[:-1], strict=True)
    ]
    arms = check_label(inputs, [outcome for outcome in outcomes if not outcome.refusal], accepted_edits(proposals))  # 4
    lineage = inputs.lineage(skipped_checks=[*_skipped_checks(inputs)])
    nulls = [] if outcomes[-1].refusal else arms[-1:]
    compared = compare_arms(
        accepted_edits(proposals), arms[: len(arms) - len(nulls)], nulls, None, parameters.thresholds, LABEL_CHECK
    )
    yield from rows(lineage, "", proposals, *compared)


@dataclass(frozen=True, slots=True)
class Paste:
    """One image to compose, and the change that it makes (None: the null arm). `background` names the image."""

    composition: Composition
    change: Change | None
    background: str = ""

    @property
    def record(self) -> dict[str, JsonValue]:
        """The composition as the lineage has it: its images by digest."""
        numbers = self.composition.model_dump(mode="json", exclude={"background", "background_mask"})
        return {"background": self.background, **numbers}


NULL = Paste(Composition(), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A composed image with the mask of its object in the source, or the reason why there is none."""

    paste: Paste
    image: ImagePayload | None
    refusal: str
    mask: ImagePayload


Questions = dict[str, tuple[Exchange, ...]]  # to the language model, by digest of the background


def name_backgrounds(inputs: Inputs[ComposeParameters]) -> tuple[Inputs[ComposeParameters], Questions]:
    """Step 1: the inputs with a value for each background, from its caption if it has none, and the questions asked."""
    questions: Questions = {}
    named = []
    for chosen in inputs.parameters.backgrounds:
        value = chosen.value
        if not value:
            value, questions[chosen.digest] = value_of_background(
                chosen.digest, inputs.image.load, inputs.task, inputs.services
            )
        named.append(chosen.model_copy(update={"value": value}))
    parameters = inputs.parameters.model_copy(update={"backgrounds": tuple(named)})
    return replace(inputs, parameters=parameters), questions


def choose_backgrounds(inputs: Inputs[ComposeParameters]) -> list[Background]:
    """Step 1: backgrounds other than the source itself, one of each value before the second of any.

    Those of the source's own value come only if there are no others: they would change nothing.
    """
    p, image = inputs.parameters, inputs.image
    foreign = [chosen for chosen in p.backgrounds if chosen.digest != image.digest]
    other_values = [chosen for chosen in foreign if chosen.value != own_value(inputs)]
    by_value: dict[str, list[Background]] = defaultdict(list)
    for chosen in other_values or foreign:
        by_value[chosen.value].append(chosen)
    chance = Random(inputs.derive_seed("backgrounds"))
    for backgrounds in by_value.values():
        chance.shuffle(backgrounds)
    values = sorted(by_value)
    chance.shuffle(values)
    rank = [(place, by_value[value][place]) for value in values for place in range(len(by_value[value]))]
    return [chosen for _, chosen in sorted(rank, key=lambda ranked: ranked[0])][: p.backgrounds_per_image]


def own_value(inputs: Inputs[ComposeParameters]) -> str:
    """The value of the source's own background: that of its class, if others come from images of classes; else ""."""
    truth = inputs.image.ground_truth
    scene = "" if truth is None else scene_of(truth)
    return scene if any(chosen.value == scene for chosen in inputs.parameters.backgrounds) else ""


def background_pastes(inputs: Inputs[ComposeParameters], backgrounds: Sequence[Background]) -> Iterator[Paste]:
    """Step 2: the object at its own place and size on each background."""
    load, value = inputs.image.load, own_value(inputs)
    for chosen in backgrounds:
        mask = None if chosen.mask is None else load(chosen.mask)
        composition = Composition(background=load(chosen.digest), background_mask=mask, clear=chosen.clear)
        old = "" if value == chosen.value else value
        yield Paste(composition, Change("background", old, chosen.value, old, chosen.value), chosen.digest)


def moved_pastes(inputs: Inputs[ComposeParameters]) -> Iterator[Paste]:
    """Step 2: the object on its own background, at other sizes and places, and mirrored."""
    p = inputs.parameters
    for scale in p.scales:
        yield Paste(Composition(scale=scale), _background_change(f"{scale:.0%} of its size"))
    for place in p.places:
        yield Paste(
            Composition(place=place), _background_change("in the middle" if place == "middle" else f"at the {place}")
        )
    if p.mirrored:
        yield Paste(Composition(mirrored=True), _background_change("mirrored"))


def compose_images(inputs: Inputs[ComposeParameters], pastes: Sequence[Paste]) -> list[Outcome]:
    """Step 3: the images of all pastes, in as few requests as the limit of images per message allows."""
    outcomes = []
    for chunk in chunks(pastes, MAX_IMAGES_PER_MESSAGE - 2):  # source and mask travel too
        compositions = [paste.composition for paste in chunk]
        image = inputs.image
        reply = inputs.services.compose(
            ComposeRequest(source=image.image, mask=image.object_mask, compositions=compositions)
        )
        for paste, composed, refusal in zip(chunk, reply.images, reply.refusals, strict=True):
            outcomes.append(Outcome(paste, composed, refusal, reply.mask))
    return outcomes


def propose(
    inputs: Inputs[ComposeParameters], paste: Paste, outcome: Outcome, exchanges: tuple[Exchange, ...]
) -> Proposal:
    """The edit of a paste, refused as `object` if it could not be composed; it has no caption."""
    verdict = Verdict(False, "object", outcome.refusal) if outcome.refusal else ACCEPTED
    changes = () if paste.change is None else (paste.change,)
    return Proposal(Edit(changes, "", ""), inputs.seed, verdict, exchanges=exchanges)


def check_label(
    inputs: Inputs[ComposeParameters], outcomes: Sequence[Outcome], edits: Sequence[Edit]
) -> list[RenderedArm[None]]:
    """Step 4: the composed images with the scorer's verdict on the class, where the job has a threshold for it.

    `edits` are those of the first images; the others are null arms, which are scored only.
    """
    thresholds = inputs.parameters.thresholds
    images = [outcome.image for outcome in outcomes if outcome.image is not None]
    scores: list[Scores] = [{} for _ in images]
    if images and LABEL not in _skipped_checks(inputs):
        no_edits = [None] * len(images)
        embed = inputs.services.embed
        scores = [
            ImageSignals(vectors=vectors).scores()
            for chunk in chunks(images, MAX_IMAGES_PER_MESSAGE - 1)
            for vectors in embed_images(embed, inputs.image, inputs.task, chunk, no_edits[: len(chunk)], words=False)
        ]
    arms = []
    for place, (outcome, score) in enumerate(zip(outcomes, scores, strict=True)):
        verdict = judge(score, edits[place], thresholds, LABEL_CHECK) if place < len(edits) else ACCEPTED
        rendering: Lineage = {"rendering": outcome.paste.record}
        arms.append(
            RenderedArm(outcome.image, inputs.seed, verdict, score, None, 0, control=outcome.mask, lineage=rendering)
        )
    return arms


def _skipped_checks(inputs: Inputs[ComposeParameters]) -> list[str]:
    """The checks that do not apply, among them `label` without a threshold or a label set."""
    unknown = skipped_checks(inputs.image, inputs.task)
    return [
        check
        for check in RENDERED_CHECKS
        if check not in LABEL_CHECK or check in unknown or not inputs.parameters.thresholds.get(check)
    ]


def _background_change(value: str) -> Change:
    return Change("other", "", value, "", value)


# --- The parameters.

REVISION = "1"  # raise it whenever the same replies would give other counterfactuals


class ComposeParameters(MethodParameters):
    """What a job may choose about compositions."""

    backgrounds: Annotated[
        tuple[Background, ...],
        Field(
            max_length=MOST_BACKGROUNDS,
            description="Uploaded images to use as backgrounds, each with a value, or named by its caption; "
            "default: the job's other images, without their objects.",
        ),
    ] = ()
    backgrounds_per_image: Annotated[int, Field(ge=0, le=24, description="Backgrounds of each source image.")] = 4
    scales: Annotated[
        tuple[Scale, ...], Field(max_length=6, description="Sizes of the object, as factors of its own.")
    ] = (0.6, 1.4)
    places: Annotated[tuple[Place, ...], Field(max_length=5, description="Places that the object moves to.")] = (
        "left",
        "right",
    )
    mirrored: Annotated[bool, Field(description="Whether to mirror the object.")] = True
    label_threshold: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="Least zero-shot probability of the ground truth, for masks that may miss a part; null: not "
            "checked, since a scorer may be misled by backgrounds, too.",
        ),
    ] = None

    @property
    def thresholds(self) -> Thresholds:
        """The threshold of the check `label`; empty if it is not checked."""
        return {} if self.label_threshold is None else {LABEL: {"default": self.label_threshold}}

    def renderings(self) -> tuple[int, int]:
        return self.cells(), 1

    def cells(self) -> int:
        return self.backgrounds_per_image + len(self.scales) + len(self.places) + self.mirrored

    def objects(self) -> Literal["", "moved", "kept"]:
        return "moved"

    def own_backgrounds(self) -> tuple[Background, ...] | None:
        return self.backgrounds if self.backgrounds_per_image else None

    @model_validator(mode="before")
    @classmethod
    def _no_unused_backgrounds(cls, value: Any) -> Any:
        unused = isinstance(value, dict) and value.get("backgrounds_per_image") == 0
        return {**value, "backgrounds": ()} if unused else value

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.cells():
            raise ValueError("there is nothing to compose; choose backgrounds_per_image, scales, places or mirrored")
        if 1.0 in self.scales:
            raise ValueError("scales has 1, which changes nothing; leave it out")
        for name, values in (("scales", self.scales), ("places", self.places)):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names a value more than once; name each once")
        digests = [chosen.digest for chosen in self.backgrounds]
        if len(set(digests)) < len(digests):
            raise ValueError("backgrounds names an image more than once; name each once")
        return self


def value_of_background(
    digest: str, load: Callable[[str], ImagePayload], task: TaskDescription, services: Services
) -> tuple[str, tuple[Exchange, ...]]:
    """What an image shows, in the plainest word, and the exchange with the language model.

    The value is "another background" if the caption names nothing but classes of the job, or the reply is not valid.
    Raises what the services raise.
    """
    (caption,) = services.caption(CaptionRequest(images=[load(digest)])).captions
    caption = " ".join(caption.split())
    messages, schema = keyword_messages(task, caption, None), keyword_schema(MOST_PHRASES)
    try:
        reply, exchange = ask(services, KEYWORDS, messages, schema, seed=0, max_tokens=512)  # greedy: any seed
    except InvalidReply as invalid:
        return UNKNOWN, (invalid.exchange,)
    usable = [
        (_FACTORS.index(keyword.factor), value)
        for keyword in reply["keywords"]
        if (value := visible(" ".join(keyword.value.split())))
        and check_keyword(keyword.phrase, caption, None, task.classes) is None
        and check_keyword(value, value, None, task.classes) is None
    ]
    return min(usable, key=lambda ranked: ranked[0], default=(0, UNKNOWN))[1], (exchange,)
