"""Automatic checks of rendered images. `CHECKS` has one entry for each: what it scores, whom it judges, how it refuses.

A method names its checks in the order in which they judge. The first that fails names the verdict; all scores are kept.
A check without a threshold only scores. Thresholds depend on the scorer's weights and on the edit's factor, and come
from the profile.

A null or sham arm has scores too. The edit's checks that do not concern the change (`Check.arms`) judge it: it must
still show the source's class and shapes, at the thresholds of the edit's factor. The edit keeps its own verdict. An
image that the generator could not compute is refused as `not finite`. If a null arm is not finite, the edits that are
compared with it are refused (`arms.py`).

Where the ground truth lies at places of the image, an editor's zoom or shift of the picture is found and undone, in all
arms alike: the checks of outlines and shapes, the models under test and the user get the picture that was moved back
(`where_the_source_is`). If it shows too little of the source for that, the edit is refused as `registration`.

Where it is boxes, the check `presence` asks for each one whether its object is still there, in the images of all
methods with checks. An object that is not there in an image does not count in its pairs (`lost_objects`).

Where the profile has `[evaluator.second_scorer]`, every rendered image is scored by it as well. Its verdict is that of
the same checks in which the scores of the scorer are replaced by its own (`second_…`), at thresholds of its own. It
changes no verdict of the method: the analysis reports the effect among the images that both, or the second one, accept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from gateway.methods.counterfactual import (
    ACCEPTED,
    FACTORS,
    Edit,
    MethodCounterfactual,
    MethodImage,
    Scores,
    TaskDescription,
    Thresholds,
    Verdict,
)
from gateway.methods.image_scores import ImageVectors, Vector, embed_images, label_set
from gateway.methods.words import in_captions, names_class
from shared.media.images import decode, encode
from shared.media.moves import moved_back
from shared.schemas.base import ImagePayload
from shared.schemas.boxes import PredictedBox, TrueBox
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.evaluation import BoxedThing, Move, ShapesOutcome, ShapesReply, ShapesRequest, StructureRequest
from shared.schemas.masks import MAX_MASK_CLASSES
from shared.schemas.thresholds import ImageCheck
from shared.schemas.validity import VALIDITY
from shared.service.endpoints import Services

MANY_CLASSES = 100  # of a larger label set the first five count, as on ImageNet
FIRST_OF_MANY = 5
THING_IOU = 0.5  # the least IoU of a thing that kept its place
STILL_THERE = 0.8  # the least share of an object's pixels in the source that it keeps; measured: research/docs/roads.md
DIRECTION: Final = "direction"
LABEL: Final = "label"
LIKENESS: Final = "likeness"
PRESENCE: Final = "presence"
RECAPTION: Final = "recaption"
REGISTRATION: Final = "registration"  # the share of the source that a picture still shows, if its editor moved it
SHAPES: Final = "shapes"
THINGS: Final = "things"
WORD: Final = "word"
LEAST_SHOWN = 0.85  # of the source by a picture that its editor zoomed or shifted
LABEL_BY_RANK = 0.0  # the threshold of `label` where none is named
_MOVE = ("zoom", "moved_right", "moved_down")  # scores beside `registration`; shifts are pixels
_LOST_OBJECT = "lost_object_"  # and the place of its box: the share of its pixels that an object keeps that is lost
_ZERO = 1e-6  # a shorter difference of unit vectors has no direction
ACCEPTED_BY_SECOND = "second_accepted"  # score of every rendered image: 1 if the second scorer accepts it, else 0
NOT_FINITE = Verdict(False, "not finite", "the generator computed NaN or infinity; there is no image")


@dataclass(frozen=True, slots=True)
class ImageSignals:
    """What the services measured of an image; None where they were not asked, or had nothing to measure.

    `objects`: by place of its box, the share of an object's pixels that is left (None: it cannot be judged).
    """

    agreement: float | None = None
    vectors: ImageVectors | None = None
    shapes: ShapesOutcome | None = None
    caption: NewCaption | None = None
    move: Move | None = None
    objects: Mapping[int, float | None] | None = None

    def scores(self) -> Scores:
        """The scores of all checks that can be made, and the move of a picture that was moved."""
        scores = {name: score for check in CHECKS.values() for name, score in check.scores(self).items()}
        if (move := self.move) is None:
            return scores
        return {**scores, REGISTRATION: move.shown, **dict(zip(_MOVE, (move.zoom, move.right, move.down), strict=True))}


@dataclass(frozen=True, slots=True)
class Check:
    """A check of rendered images.

    `scores`: its score of an image under its name, with others beside it; empty where it cannot be made. It refuses an
    image whose score is below the threshold, in the words of `refusal`; `lost` may say that it refuses at any score.
    `lowest`: the lowest score that an image can have. `limit`: its threshold where none is named; None: it only scores.

    `arms`: whether null and sham arms must pass it, too. `of_scorer`: whether
    a second scorer repeats it. `unmade`: the verdict on an image without its score, if a method has the check.
    `fitted`: whether reviews may fit its threshold, since its score alone decides. `more_signals`: scores beside
    its own that enter a model of validity.
    """

    name: ImageCheck
    scores: Callable[[ImageSignals], Scores]
    refusal: str
    lowest: float
    arms: bool = False
    limit: float | None = None
    of_scorer: bool = False
    lost: Callable[[Scores, float], str] = lambda scores, lowest: ""
    unmade: Verdict | None = None
    fitted: bool = True
    more_signals: tuple[str, ...] = ()

    def refuse(self, scores: Scores, lowest: float) -> str:
        """Why it refuses an image with these scores at the threshold `lowest`; "" if the image passes."""
        if reason := self.lost(scores, lowest):
            return reason
        return self.refusal.format(score=scores[self.name], lowest=lowest) if scores[self.name] < lowest else ""


def _of_vectors(score: Callable[[ImageVectors], Scores]) -> Callable[[ImageSignals], Scores]:
    return lambda measured: score(measured.vectors) if measured.vectors else {}


def _of_captions(score: Callable[[ImageVectors, Vector, Vector], Scores]) -> Callable[[ImageSignals], Scores]:
    """Scores by the old and the new caption; a null arm has none."""
    return _of_vectors(lambda vectors: score(vectors, *vectors.captions) if vectors.captions else {})


def _of_shapes(score: Callable[[ShapesOutcome], Scores]) -> Callable[[ImageSignals], Scores]:
    return lambda measured: score(measured.shapes) if measured.shapes else {}


def _objects(left: Mapping[int, float | None]) -> Scores:
    """The share of the objects that are still there, their numbers, and each object that is lost."""
    checked = {place: share for place, share in left.items() if share is not None}
    lost = {place: share for place, share in checked.items() if share < STILL_THERE}
    return {
        **({PRESENCE: 1 - len(lost) / len(checked)} if checked else {}),
        "objects_lost": float(len(lost)),
        "objects_checked": float(len(checked)),
        "objects_unchecked": float(len(left) - len(checked)),
        **{f"{_LOST_OBJECT}{place}": share for place, share in lost.items()},
    }


def lost_objects(scores: Mapping[str, float]) -> frozenset[int] | None:
    """The places of the boxes whose objects are not in an image with these scores; None if nothing looked for them."""
    if "objects_checked" not in scores:
        return None
    return frozenset(int(name.removeprefix(_LOST_OBJECT)) for name in scores if name.startswith(_LOST_OBJECT))


def _direction(vectors: ImageVectors, old: Vector, new: Vector) -> Scores:
    moved, meant = vectors.image - vectors.source, new - old
    lengths = float(np.linalg.norm(moved)), float(np.linalg.norm(meant))
    return {DIRECTION: float(moved @ meant) / (lengths[0] * lengths[1])} if min(lengths) > _ZERO else {}


def _label(vectors: ImageVectors) -> Scores:
    """`label_margin`: the lead over the most probable other class. `label_rank`: the place of the ground truth among
    the classes. `label_rank_limit`: the last place that counts as kept: 1 (5 with over 100 classes), or its place in
    the source if that is later, since a scorer that misjudges the source says little about the image."""
    if not len(vectors.classes):
        return {}
    probabilities = vectors.probabilities()
    truth, first = float(probabilities[vectors.truth]), FIRST_OF_MANY if len(vectors.classes) > MANY_CLASSES else 1
    return {
        "label": truth,
        "label_margin": truth - float(np.delete(probabilities, vectors.truth).max()),
        "label_rank": vectors.rank(vectors.image),
        "label_rank_limit": max(float(first), vectors.rank(vectors.source)),
    }


def label_lost(scores: Mapping[str, float], lowest: float) -> bool:
    """Whether the ground truth ranks too low, at the threshold `lowest` of its probability.

    Above 0 it must be the most probable class. At 0, the threshold where nobody has measured one, it must be among the
    first `label_rank_limit` of the classes. Below 0 there is no such rule. Scores of older versions have no rank.
    """
    if lowest < 0:
        return False
    if lowest > 0 or "label_rank" not in scores:
        return scores["label_margin"] <= 0
    return scores["label_rank"] > scores["label_rank_limit"]


def _label_lost(scores: Scores, lowest: float) -> str:
    if not label_lost(scores, lowest):
        return ""
    if scores.get("label_rank_limit", 1) > 1 and lowest <= 0:
        return (
            f"the ground truth is only class {scores['label_rank']:.0f} by probability; expected at least class "
            f"{scores['label_rank_limit']:.0f}"
        )
    return f"another class is more probable than the ground truth, which has a probability of {scores['label']:.0%}"


_CHECKS = (  # in the order of the columns of a model of validity
    Check(  # the source's edges are there in the region that must stay
        "structure",
        lambda measured: {} if measured.agreement is None else {"structure": measured.agreement},
        "the image keeps only {score:.0%} of the outlines that must stay; expected at least {lowest:.0%}",
        lowest=0.0, arms=True,
    ),
    Check(  # zero-shot, the scorer names the ground truth; off at a threshold below 0 only
        LABEL, _of_vectors(_label),
        "the ground truth has a probability of only {score:.0%}; expected at least {lowest:.0%}",
        lost=_label_lost, lowest=math.nextafter(0.0, -1.0), arms=True, of_scorer=True,
    ),
    Check(  # the image is closer to the new caption than to the old one; the gain: by how much more than the source
        "caption",
        _of_captions(
            lambda vectors, old, new: {
                "caption": float(vectors.image @ (new - old)),
                "caption_gain": float((vectors.image - vectors.source) @ (new - old)),
            }
        ),
        "the image is not closer to the new caption than to the old one: margin {score:.3f}; "
        "expected at least {lowest:.3f}",
        lowest=-2.0, of_scorer=True, more_signals=("caption_gain",),
    ),
    Check(  # φ: cosine of (image - source) and (new caption - old caption)
        DIRECTION, _of_captions(_direction),
        "the image did not change as the caption did: φ = {score:.3f}; expected at least {lowest:.3f}",
        lowest=-1.0, of_scorer=True,
        unmade=Verdict(False, "no change", "the scorer sees no difference in the image or in the caption"),
    ),
    Check(  # the image fits the new caption about as well as the source its own; falls if more changes
        "fit",
        _of_captions(lambda vectors, old, new: {"fit": float(vectors.image @ new - vectors.source @ old)}),
        "the image fits its caption less well than the source fits its own: {score:.3f}; "
        "expected at least {lowest:.3f}",
        lowest=-2.0, of_scorer=True,
    ),
    Check(  # cosine of image and source image
        LIKENESS, _of_vectors(lambda vectors: {LIKENESS: float(vectors.image @ vectors.source)}),
        "the image is too unlike the source: cosine {score:.3f}; expected at least {lowest:.3f}",
        lowest=-1.0, arms=True, of_scorer=True,
    ),
    Check(  # cosine of image and new caption
        "match", _of_captions(lambda vectors, old, new: {"match": float(vectors.image @ new)}),
        "the image does not match the new caption: cosine {score:.3f}; expected at least {lowest:.3f}",
        lowest=-1.0, of_scorer=True,
    ),
    Check(  # the image is closer to the new phrase than to the old one, least over the changes
        WORD,
        _of_vectors(
            lambda vectors: {WORD: min(float(vectors.image @ (new - old)) for old, new in vectors.words)}
            if vectors.words
            else {}
        ),
        "the image is not closer to the new word than to the old one: margin {score:.3f}; "
        "expected at least {lowest:.3f}",
        lowest=-2.0, of_scorer=True,
    ),
    Check(  # mean over classes: the segmenter's IoU with the mask, divided by that in the source, at most 1
        SHAPES, _of_shapes(lambda seen: {SHAPES: float(np.mean(seen.classes))} if seen.classes else {}),
        "a segmenter finds the classes of the mask {score:.0%} as well as in the source; "
        "expected at least {lowest:.0%}",
        lowest=0.0, arms=True,
    ),
    Check(  # the share of the things that the segmenter finds in the source that it also finds in the image
        THINGS,
        _of_shapes(lambda seen: {THINGS: float(np.mean(np.array(seen.things) >= THING_IOU))} if seen.things else {}),
        "{score:.0%} of the things that a segmenter finds in the source kept their places; "
        "expected at least {lowest:.0%}",
        lowest=0.0, arms=True,
    ),
    Check(  # if the job sets it: a new caption names the classes that a caption of the source names
        RECAPTION, lambda measured: {RECAPTION: measured.caption.named} if measured.caption else {},
        "its new caption names {score:.0%} of what a caption of the source names; expected at least {lowest:.0%}",
        lowest=0.0, arms=True, limit=1.0, fitted=False,
    ),
    Check(  # the share of the objects that a segmenter sees in the source and still sees in their boxes
        PRESENCE, lambda measured: {} if measured.objects is None else _objects(measured.objects),
        "only {score:.0%} of the objects that a segmenter sees in the source are still there; "
        "expected at least {lowest:.0%}",
        lost=lambda scores, lowest: "" if scores[PRESENCE] or lowest < 0 else (
            "a segmenter sees none of the objects any more that it sees in the source"
        ),
        lowest=math.nextafter(0.0, -1.0), arms=True, limit=0.0, fitted=False,
    ),
    Check(  # all scores of an edit together, weighed by a calibrated model (`validity.py`)
        VALIDITY, lambda measured: {},
        "the probability that the image is valid is only {score:.0%}; expected at least {lowest:.0%}",
        lowest=0.0,
    ),
)  # fmt: skip
CHECKS: dict[str, Check] = {check.name: check for check in _CHECKS}
# The checks of newly rendered images, and those of images edited in place, in the order in which they judge.
RENDERED_CHECKS: tuple[ImageCheck, ...] = ("structure", "caption", "label", "recaption", "shapes", "things", "fit")
EDITED_CHECKS: tuple[ImageCheck, ...] = (
    "likeness",
    "match",
    "caption",
    "label",
    "recaption",
    "shapes",
    "things",
    "direction",
)
LANCE_CHECKS = ("likeness", "match", "direction")  # the paper's own
WORD_CHECKS: tuple[ImageCheck, ...] = (*EDITED_CHECKS[:3], WORD, *EDITED_CHECKS[3:])
LABEL_CHECK: tuple[ImageCheck, ...] = (LABEL,)
# Without calibrated thresholds: the ground truth is the most probable class, and the image closer to the new text.
UNCALIBRATED: Thresholds = {LABEL: {"default": LABEL_BY_RANK}, "caption": {"default": 0.0}}
UNCALIBRATED_EDITED: Thresholds = {"caption": {"default": 0.0}, "word": {"default": 0.0}}
LIMITS: Thresholds = {check.name: {"default": check.limit} for check in CHECKS.values() if check.limit is not None}


class Captioner(Protocol):
    """The service that writes new captions."""

    def caption(self, request: CaptionRequest) -> CaptionReply: ...


@dataclass(frozen=True, slots=True)
class NewCaption:
    """A new caption of an image, and the share of the classes named in the source's caption that it names (0 to 1)."""

    caption: str
    named: float


def new_captions(services: Captioner, images: Sequence[ImagePayload]) -> list[str]:
    """Captions of images by the profile's captioner: greedy, without the method's prompt or limits."""
    return services.caption(CaptionRequest(images=list(images))).captions


def named_share(caption: str, labels: Sequence[str]) -> float:
    """The share of labels that a caption names, with common words for people and vehicles."""
    return float(np.mean([names_class(caption, in_captions(label)) for label in labels]))


def recaption_images(
    services: Captioner, source: MethodImage, task: TaskDescription, images: Sequence[ImagePayload]
) -> list[NewCaption | None]:
    """New captions of images of one source (at most 16); None for each if there is nothing to name.

    The classes are the ground truth, or those marked as things in segmentation jobs, that the source's own caption
    names.
    """
    labels = task.things if task.mask_classes else (source.ground_truth,) if source.ground_truth is not None else ()
    if labels:
        [before] = new_captions(services, [source.image])
        labels = tuple(label for label in labels if named_share(before, [label]))
    if not labels:
        return [None] * len(images)
    return [NewCaption(caption, named_share(caption, labels)) for caption in new_captions(services, images)]


class Rendered(Protocol):
    """The reply of an editor: images of one source (None: not finite), and the mask of what must stay in it."""

    @property
    def images(self) -> Sequence[ImagePayload | None]: ...
    @property
    def keep_mask(self) -> ImagePayload | None: ...


@dataclass(frozen=True, slots=True)
class Pictures:
    """Images of one source, and the mask of what must stay in it."""

    images: list[ImagePayload]
    keep_mask: ImagePayload | None


class ShapeService(Protocol):
    """The service that `find_shapes` calls."""

    def shapes(self, request: ShapesRequest) -> ShapesReply: ...


def check_images(
    services: Services,
    source: MethodImage,
    task: TaskDescription,
    reply: Rendered,
    edits: Sequence[Edit | None],
    thresholds: Thresholds,
    checks: Sequence[str] = RENDERED_CHECKS,
    recaption: bool = False,
    second: Thresholds | None = None,
) -> list[tuple[Verdict, Scores]]:
    """Verdict and scores of each image of a reply; `edits` has the edit of each image in order, None for a null arm.

    An image that is None is refused as `not finite`, without scores, in either arm.

    The scores are those of all `CHECKS` that can be made; `checks` decide the verdict. Sends one request for structure,
    one for shapes in segmentation jobs, and two for captions with `recaption`, since a reply holds at most 15 images.
    With thresholds of a `second` scorer, its scores and verdict are among the scores.
    """
    checks = (*checks, PRESENCE)
    if len(edits) != len(reply.images):
        raise ValueError(
            f"give one edit per image (None for a null arm): {len(reply.images)} images, {len(edits)} edits"
        )
    finite = [(image, edit) for image, edit in zip(reply.images, edits, strict=True) if image is not None]
    if not finite:
        return [(NOT_FINITE, {})] * len(edits)
    images, of_images = [image for image, _ in finite], [edit for _, edit in finite]
    agreements = services.structure(
        StructureRequest(source=source.image, images=images, mask=reply.keep_mask, find_moves=task.localised)
    )
    moves = agreements.moves or [None] * len(images)
    words = WORD in checks
    vectors = embed_images(services.embed, source, task, images, of_images, words=words)
    second_vectors: Sequence[ImageVectors | None] = [None] * len(images)
    if second:
        second_vectors = embed_images(services.second_embed, source, task, images, of_images, words=words)
    in_place = [_moved_back(image, source.image, move) for image, move in zip(images, moves, strict=True)]
    shapes = find_shapes(services, source, task, in_place)
    objects: Sequence[Mapping[int, float | None] | None] = [None] * len(images)
    if source.boxes is not None:
        counted = {place: thing for place, thing in enumerate(source.boxes) if thing.ignore is None}
        objects = find_objects(services, source.image, in_place, counted)
    captions = recaption_images(services, source, task, images) if recaption else [None] * len(images)
    measured = [
        ImageSignals(*parts)
        for parts in zip(agreements.agreements, vectors, shapes, captions, moves, objects, strict=True)
    ]
    judged, limits = [], {**LIMITS, **thresholds}
    for edit, of_image, embedded_again in zip(of_images, measured, second_vectors, strict=True):
        scores = of_image.scores()
        if second and embedded_again:
            of_arm = checks if edit and edit.changes else _of_arms(checks)
            scores = with_second(scores, ImageSignals(vectors=embedded_again).scores(), edit, limits, second, of_arm)
        verdict = ACCEPTED if edit is None or not edit.changes else judge(scores, edit, limits, checks)
        judged.append((_with_new_caption(verdict, of_image.caption), scores))
    checked = iter(judged)
    return [(NOT_FINITE, {}) if image is None else next(checked) for image in reply.images]


def where_the_source_is(counterfactual: MethodCounterfactual, source: Callable[[], bytes]) -> ImagePayload | None:
    """Its image with the zoom and shift undone that its scores have; `source` loads the PNG of the source image."""
    scores, image = counterfactual.scores, counterfactual.image
    if image is None or REGISTRATION not in scores:
        return image
    zoom, right, down = (scores[name] for name in _MOVE)
    move = Move(zoom=zoom, right=right, down=down, shown=scores[REGISTRATION])
    return _moved_back(image, ImagePayload(png=source()), move)


def _moved_back(image: ImagePayload, source: ImagePayload, move: Move | None) -> ImagePayload:
    if move is None:
        return image
    return ImagePayload(png=encode(moved_back(decode(image.png), decode(source.png), move)))


def _with_new_caption(verdict: Verdict, new: NewCaption | None) -> Verdict:
    """The verdict; the check `recaption` quotes the new caption."""
    if new is None or verdict.check != RECAPTION:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}: “{new.caption}”")


def find_shapes(
    services: ShapeService, source: MethodImage, task: TaskDescription, images: Sequence[ImagePayload]
) -> list[ShapesOutcome | None]:
    """What the segmenter finds of the mask in images of one source; None outside of segmentation jobs."""
    if not task.mask_classes:
        return [None] * len(images)
    request = ShapesRequest(
        source=source.image,
        images=list(images),
        mask=source.mask,
        classes=list(task.mask_classes),
        things=list(task.things),
    )
    return [*services.shapes(request).outcomes]


def find_objects(
    services: ShapeService,
    source: ImagePayload,
    images: Sequence[ImagePayload],
    things: Mapping[int, TrueBox | PredictedBox],
) -> list[dict[int, float | None]]:
    """`ImageSignals.objects` of images of one source, of these boxes by their places."""
    if not things:
        return [{}] * len(images)
    labels = list(dict.fromkeys(thing.label for thing in things.values()))[:MAX_MASK_CLASSES]
    known = {place: BoxedThing(label=it.label, box=it.box) for place, it in things.items() if it.label in labels}
    request = ShapesRequest(source=source, images=list(images), classes=labels, boxes=list(known.values()))
    left = [dict(zip(known, outcome.boxes, strict=False)) for outcome in services.shapes(request).outcomes]
    return [{place: of_image.get(place) for place in things} for of_image in left]


def find_added(
    services: ShapeService, source: ImagePayload, image: ImagePayload, boxes: Sequence[PredictedBox]
) -> list[PredictedBox]:
    """Those of the boxes in which a segmenter sees their class in an image, but not in its source: the editor's."""
    [in_source] = find_objects(services, image, [source], dict(enumerate(boxes)))
    return [boxes[place] for place, share in in_source.items() if share is not None and share < STILL_THERE]


def judge(scores: Scores, edit: Edit, thresholds: Thresholds, checks: Sequence[str] = RENDERED_CHECKS) -> Verdict:
    """The verdict of checks, in order, on an image's scores; the strictest threshold of the edit's factors counts."""
    if (shown := scores.get(REGISTRATION, 1.0)) < LEAST_SHOWN:
        reason = f"the editor zoomed or shifted the picture, which shows only {shown:.0%} of the source"
        return Verdict(False, REGISTRATION, f"{reason}; expected at least {LEAST_SHOWN:.0%}")
    for name in checks:
        if (unmade := CHECKS[name].unmade) and name not in scores:
            return unmade
    for name in checks:
        judging = name in scores and name in thresholds
        if judging and (reason := CHECKS[name].refuse(scores, limit_of(edit, thresholds[name]))):
            return Verdict(False, name, reason)
    return ACCEPTED


def limit_of(edit: Edit, by_factor: Mapping[str, float]) -> float:
    """A check's threshold for an edit: the strictest of those of its changes' factors."""
    return max(by_factor.get(change.factor, by_factor["default"]) for change in edit.changes)


def judge_arm(scores: Scores, edit: Edit, thresholds: Thresholds, checks: Sequence[str] = RENDERED_CHECKS) -> Verdict:
    """The verdict on the null or sham arm of an edit: the edit's checks of class and shapes, at its thresholds."""
    return judge(scores, edit, {**LIMITS, **thresholds}, _of_arms((*checks, PRESENCE)))


def _of_arms(checks: Sequence[str]) -> list[str]:
    return [name for name in checks if CHECKS[name].arms]


def with_label_rank(thresholds: Thresholds) -> dict[str, dict[str, float]]:
    """The thresholds of a request or calibration; if they do not name `label`, its rank alone decides.

    Without any threshold there are no checks, and none is added.
    """
    named = {check: dict(by_factor) for check, by_factor in thresholds.items()}
    return {LABEL: {"default": LABEL_BY_RANK}, **named} if named else {}


def effective_thresholds(thresholds: Thresholds) -> dict[str, dict[str, float]]:
    """The thresholds without those of checks that every image passes, whatever its edit's factor."""
    return {
        check: dict(by_factor)
        for check, by_factor in thresholds.items()
        if len(factors_off(check, by_factor)) < len(FACTORS)
    }


def factors_off(check: str, by_factor: Mapping[str, float]) -> list[str]:
    """The factors for which every image passes: their limit is not above the lowest possible score."""
    lowest = CHECKS[check].lowest if check in CHECKS else -math.inf
    return [factor for factor in FACTORS if by_factor.get(factor, by_factor["default"]) <= lowest]


def skipped_checks(source: MethodImage, task: TaskDescription) -> tuple[str, ...]:
    """The names of the checks that this source image and task leave out."""
    return () if label_set(source, task) else (LABEL,)


def with_second(
    scores: Scores,
    second: Scores,
    edit: Edit | None,
    thresholds: Thresholds,
    second_thresholds: Thresholds,
    checks: Sequence[str],
) -> Scores:
    """The scores with those of the second scorer, and its verdict (0 or 1).

    `second_thresholds` are the second scorer's. Of the job's `thresholds`, those of other checks apply too.
    An edit without changes, or a null arm (None), has the limits of `default`.
    """
    merged = {**scores, **second}
    own = {name: values for name, values in thresholds.items() if name in CHECKS and not CHECKS[name].of_scorer}
    limits = {**own, **second_thresholds}
    factors = [change.factor for change in edit.changes] if edit else []
    accepted = scores.get(REGISTRATION, 1.0) >= LEAST_SHOWN and not any(
        CHECKS[name].refuse(merged, _strictest(limits[name], factors))
        for name in checks
        if name in limits and name in merged
    )
    named = {f"second_{name}": score for name, score in second.items()}
    return {**scores, **named, ACCEPTED_BY_SECOND: float(accepted)}


def _strictest(by_factor: Mapping[str, float], factors: Sequence[str]) -> float:
    return max((by_factor.get(factor, by_factor["default"]) for factor in factors), default=by_factor["default"])
