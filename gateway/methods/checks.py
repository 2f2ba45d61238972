"""Automatic checks of rendered images: verdicts and scores from the replies of the services.

Checks run in order. The first that fails names the verdict; all scores are kept. Newly rendered images have these:

structure   the source's edges in the region that must stay are still there (evaluator: structure agreement)
caption     the image is closer to the new caption than to the old one (difference of the scorer's cosines)
label       the scorer's most probable class (zero-shot over the label set) is the ground truth, with a high enough
            probability; at a threshold of 0 its rank alone decides, relative to the source (`label_lost`); skipped
            without ground truth or label set; off at a threshold below 0 only
recaption   if the job sets it: a new caption of the image names the class, as a caption of the source does;
            skipped if the source's caption names no class
shapes      in segmentation jobs: the profile's segmenter, never a model under test, segments the classes where the mask
            has them (mean over classes of IoU divided by the IoU in the source, at most 1); skipped if the profile has
            no segmenter, or it detects no class of the mask in the source
things      share of the source's detected things (IoU of 0.5) that the segmenter also detects in the image
fit         the image fits the new caption about as well as the source fits its own (difference of the scorer's
            cosines); it falls when the image changes by more than the edit

Images edited in place have other checks (`lance.py`, `lance_r.py`).

A null arm has scores too. `judge_arm` applies to it those checks of its edit that do not concern the change
(`ARM_CHECKS`): it must still show the source's class and shapes, at the thresholds of the edit's factor. The edit keeps
its own verdict. An image that the generator could not compute is refused as `not finite`. If a null arm is not finite,
the edits that are compared with it are refused (`arms.py`). Thresholds depend on the scorer's weights and on the edit's
factor, and come from the profile. A check without thresholds only scores.

The check `recaption`: a new caption of an image names the classes that a caption of its source names.

The classes are the ground truth, or the classes marked as things in segmentation jobs. `names_class` decides whether a
caption names a class; it includes common words for people and vehicles. Classes that the source's caption does not name
do not count; if it names none, the check is skipped. The profile's captioner writes the captions greedily, without the
method's prompt or limits.

The checks under a second scorer, of another family than the first: would it have accepted the image, too?

Where the profile has `[evaluator.second_scorer]`, every rendered image is scored by it as well. Its verdict is that of
the same checks in which the scores of the scorer are replaced by its own (`second_…`), at thresholds of its own. It
changes no verdict of the method: the analysis reports the effect among the images that both, or the second one, accept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from gateway.methods.counterfactual import (
    ACCEPTED,
    FACTORS,
    Edit,
    MethodImage,
    Scores,
    TaskDescription,
    Thresholds,
    Verdict,
)
from gateway.methods.image_scores import label_lost, label_set, score_images
from gateway.methods.words import in_captions, names_class
from shared.endpoints import Services
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.evaluation import ShapesReply, ShapesRequest, StructureRequest

# Without calibrated ones: the ground truth is the most probable class, and the new caption fits better than the old.
UNCALIBRATED: Thresholds = {"label": {"default": 0.0}, "caption": {"default": 0.0}}
OF_SCORER = ("caption", "label", "fit", "likeness", "match", "direction", "word")
ACCEPTED_BY_SECOND = "second_accepted"  # score of every rendered image: 1 if the second scorer accepts it, else 0
Recaption = Annotated[
    bool, Field(description="Caption each rendered image; its caption must name the class (one more call per image).")
]


class Captioner(Protocol):
    """The service that `recaption_images` calls."""

    def caption(self, request: CaptionRequest) -> CaptionReply: ...


@dataclass(frozen=True, slots=True)
class NewCaption:
    """A new caption of an image, and the share of the classes named in the source's caption that it names (0 to 1)."""

    caption: str
    named: float


def recaption_images(
    services: Captioner, source: MethodImage, task: TaskDescription, images: Sequence[ImagePayload]
) -> list[NewCaption | None]:
    """New captions of images of one source (at most 16); None for each if the check is skipped."""
    classes = [in_captions(label) for label in _classes(source, task)]
    if classes:
        [before] = services.caption(CaptionRequest(images=[source.image])).captions
        classes = [names for names in classes if names_class(before, names)]
    if not classes:
        return [None] * len(images)
    captions = services.caption(CaptionRequest(images=list(images))).captions
    return [
        NewCaption(caption, float(np.mean([names_class(caption, names) for names in classes]))) for caption in captions
    ]


def _classes(source: MethodImage, task: TaskDescription) -> tuple[str, ...]:
    if task.mask_classes:
        return task.things
    return () if source.ground_truth is None else (source.ground_truth,)


CHECKS = ("structure", "caption", "label", "recaption", "shapes", "things", "fit")
ARM_CHECKS = ("structure", "likeness", "label", "recaption", "shapes", "things")  # applied if the edit has them
RECAPTION_LIMIT: Thresholds = {"recaption": {"default": 1.0}}  # unless the thresholds set one
LABEL_BY_RANK = 0.0  # the threshold of `label` where none is named
LOWEST_SCORES = {  # that an image can have; `label` also refuses by rank, at 0 too
    "label": math.nextafter(0.0, -1.0),
    **dict.fromkeys(("structure", "recaption", "shapes", "things", "validity"), 0.0),
    **dict.fromkeys(("likeness", "match", "direction"), -1.0),
    **dict.fromkeys(("caption", "fit", "word"), -2.0),
}
THING_IOU = 0.5  # the least IoU of a thing that kept its place
NOT_FINITE = Verdict(False, "not finite", "the generator computed NaN or infinity; there is no image")


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
    """The service that `shape_scores` calls."""

    def shapes(self, request: ShapesRequest) -> ShapesReply: ...


def check_images(
    services: Services,
    source: MethodImage,
    task: TaskDescription,
    reply: Rendered,
    edits: Sequence[Edit | None],
    thresholds: Thresholds,
    checks: Sequence[str] = CHECKS,
    recaption: bool = False,
    second: Thresholds | None = None,
) -> list[tuple[Verdict, Scores]]:
    """Verdict and scores of each image of a reply; `edits` has the edit of each image in order, None for a null arm.

    An image that is None is refused as `not finite`, without scores, in either arm.

    The scores are those of `score_images`, and `structure`, `recaption`, `shapes` and `things` (0 to 1). `checks`
    decide the verdict. Sends one request for structure, one for shapes in segmentation jobs, and two for captions with
    `recaption`, since a reply holds at most 15 images. With thresholds of a `second` scorer, its scores and verdict are
    among the scores.
    """
    if len(edits) != len(reply.images):
        raise ValueError(
            f"give one edit per image (None for a null arm): {len(reply.images)} images, {len(edits)} edits"
        )
    finite = [(image, edit) for image, edit in zip(reply.images, edits, strict=True) if image is not None]
    if not finite:
        return [(NOT_FINITE, {})] * len(edits)
    pictures = Pictures([image for image, _ in finite], reply.keep_mask)
    checked = iter(
        _check_finite(
            services, source, task, pictures, [edit for _, edit in finite], thresholds, checks, recaption, second
        )
    )
    return [(NOT_FINITE, {}) if image is None else next(checked) for image in reply.images]


def _check_finite(
    services: Services,
    source: MethodImage,
    task: TaskDescription,
    reply: Pictures,
    edits: Sequence[Edit | None],
    thresholds: Thresholds,
    checks: Sequence[str],
    recaption: bool,
    second: Thresholds | None,
) -> list[tuple[Verdict, Scores]]:
    agreements = services.structure(StructureRequest(source=source.image, images=reply.images, mask=reply.keep_mask))
    words = "word" in checks
    scored = score_images(services.embed, source, task, reply.images, edits, words=words)
    scored_again: Sequence[Scores | None] = [None] * len(edits)
    if second:
        scored_again = score_images(services.second_embed, source, task, reply.images, edits, words=words)
    shapes = shape_scores(services, source, task, reply.images)
    new_captions = recaption_images(services, source, task, reply.images) if recaption else [None] * len(reply.images)
    judged, limits = [], {**RECAPTION_LIMIT, **thresholds}
    for edit, agreement, image_scores, second_scores, shape, new in zip(
        edits, agreements.agreements, scored, scored_again, shapes, new_captions, strict=True
    ):
        scores = {"structure": agreement, **image_scores, **shape}
        if new:
            scores["recaption"] = new.named
        if second and second_scores is not None:
            of_arm = [check for check in checks if (edit and edit.changes) or check in ARM_CHECKS]
            scores = with_second(scores, second_scores, edit, limits, second, of_arm)
        verdict = ACCEPTED if edit is None or not edit.changes else judge(scores, edit, limits, checks)
        judged.append((_with_new_caption(verdict, new), scores))
    return judged


def _with_new_caption(verdict: Verdict, new: NewCaption | None) -> Verdict:
    """The verdict; the check `recaption` quotes the new caption."""
    if new is None or verdict.check != "recaption":
        return verdict
    return replace(verdict, reason=f"{verdict.reason}: “{new.caption}”")


def shape_scores(
    services: ShapeService, source: MethodImage, task: TaskDescription, images: Sequence[ImagePayload]
) -> list[Scores]:
    """`shapes` and `things` of images of one source; empty scores if the segmenter gives none."""
    if not task.mask_classes:
        return [{} for _ in images]
    request = ShapesRequest(
        source=source.image,
        images=list(images),
        mask=source.mask,
        classes=list(task.mask_classes),
        things=list(task.things),
    )
    scores = []
    for outcome in services.shapes(request).outcomes:
        shapes = {"shapes": float(np.mean(outcome.classes))} if outcome.classes else {}
        if outcome.things:
            shapes["things"] = float(np.mean([iou >= THING_IOU for iou in outcome.things]))
        scores.append(shapes)
    return scores


def judge(scores: Scores, edit: Edit, thresholds: Thresholds, checks: Sequence[str] = CHECKS) -> Verdict:
    """The verdict of checks, in order, on an image's scores; the strictest threshold of the edit's factors counts."""
    if "direction" in checks and "direction" not in scores:
        return Verdict(False, "no change", "the scorer sees no difference in the image or in the caption")
    for check in checks:
        if check not in scores or check not in thresholds:
            continue
        lowest = limit_of(edit, thresholds[check])
        if scores[check] < lowest or (check == "label" and label_lost(scores, lowest)):
            return Verdict(False, check, _reason(check, scores, lowest))
    return ACCEPTED


def limit_of(edit: Edit, by_factor: Mapping[str, float]) -> float:
    """A check's threshold for an edit: the strictest of those of its changes' factors."""
    return max(by_factor.get(change.factor, by_factor["default"]) for change in edit.changes)


def judge_arm(scores: Scores, edit: Edit, thresholds: Thresholds, checks: Sequence[str] = CHECKS) -> Verdict:
    """The verdict on the null or sham arm of an edit: the edit's checks of class and shapes, at its thresholds."""
    return judge(scores, edit, {**RECAPTION_LIMIT, **thresholds}, [check for check in checks if check in ARM_CHECKS])


def with_label_rank(thresholds: Thresholds) -> dict[str, dict[str, float]]:
    """The thresholds of a request or calibration; if they do not name `label`, its rank alone decides.

    Without any threshold there are no checks, and none is added.
    """
    named = {check: dict(by_factor) for check, by_factor in thresholds.items()}
    return {"label": {"default": LABEL_BY_RANK}, **named} if named else {}


def effective_thresholds(thresholds: Thresholds) -> dict[str, dict[str, float]]:
    """The thresholds without those of checks that every image passes, whatever its edit's factor."""
    return {
        check: dict(by_factor)
        for check, by_factor in thresholds.items()
        if len(factors_off(check, by_factor)) < len(FACTORS)
    }


def factors_off(check: str, by_factor: Mapping[str, float]) -> list[str]:
    """The factors for which every image passes: their limit is not above the lowest possible score."""
    possible = LOWEST_SCORES.get(check, -np.inf)
    return [factor for factor in FACTORS if by_factor.get(factor, by_factor["default"]) <= possible]


def skipped_checks(source: MethodImage, task: TaskDescription) -> tuple[str, ...]:
    """The names of the checks that this source image and task leave out."""
    return () if label_set(source, task) else ("label",)


_REASONS = {
    "structure": "the image keeps only {score:.0%} of the outlines that must stay; expected at least {lowest:.0%}",
    "caption": "the image is not closer to the new caption than to the old one: margin {score:.3f}; "
    "expected at least {lowest:.3f}",
    "fit": "the image fits its caption less well than the source fits its own: {score:.3f}; "
    "expected at least {lowest:.3f}",
    "likeness": "the image is too unlike the source: cosine {score:.3f}; expected at least {lowest:.3f}",
    "match": "the image does not match the new caption: cosine {score:.3f}; expected at least {lowest:.3f}",
    "word": "the image is not closer to the new word than to the old one: margin {score:.3f}; "
    "expected at least {lowest:.3f}",
    "shapes": "a segmenter finds the classes of the mask {score:.0%} as well as in the source; "
    "expected at least {lowest:.0%}",
    "recaption": "its new caption names {score:.0%} of what a caption of the source names; "
    "expected at least {lowest:.0%}",
    "things": "{score:.0%} of the things that a segmenter finds in the source kept their places; "
    "expected at least {lowest:.0%}",
    "direction": "the image did not change as the caption did: φ = {score:.3f}; expected at least {lowest:.3f}",
    "validity": "the probability that the image is valid is only {score:.0%}; expected at least {lowest:.0%}",
    "label": "the ground truth has a probability of only {score:.0%}; expected at least {lowest:.0%}",
}


def _reason(check: str, scores: Scores, lowest: float) -> str:
    if check == "label" and label_lost(scores, lowest):
        if scores.get("label_rank_limit", 1) > 1 and lowest <= 0:
            return (
                f"the ground truth is only class {scores['label_rank']:.0f} by probability; expected at least class "
                f"{scores['label_rank_limit']:.0f}"
            )
        return f"another class is more probable than the ground truth, which has a probability of {scores[check]:.0%}"
    return _REASONS[check].format(score=scores[check], lowest=lowest)


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
    limits = {**{check: values for check, values in thresholds.items() if check not in OF_SCORER}, **second_thresholds}
    factors = [change.factor for change in edit.changes] if edit else []
    accepted = all(
        _passes(check, merged, limits[check], factors) for check in checks if check in limits and check in merged
    )
    named = {f"second_{name}": score for name, score in second.items()}
    return {**scores, **named, ACCEPTED_BY_SECOND: float(accepted)}


def _passes(check: str, scores: Scores, by_factor: Mapping[str, float], factors: Sequence[str]) -> bool:
    lowest = max((by_factor.get(factor, by_factor["default"]) for factor in factors), default=by_factor["default"])
    return scores[check] >= lowest and not (check == "label" and label_lost(scores, lowest))
