"""Automatic checks of rendered images. Pure functions over the replies of the services.

Checks run in order; the first that fails names the verdict, and every score is kept. Those of images drawn anew:

structure   the source's edges, inside what must stay, are still there (evaluator: structure agreement)
caption     the image is nearer to the new caption than to the old (difference of the scorer's cosines)
label       zero-shot over the label set, the scorer still sees the ground truth (its probability, and it is the most
            probable); left out where no ground truth or no label set is known
recaption   where the job asks for it: captioned anew, the image still names the class that a caption of the source
            names (`recaption.py`); left out where that one names none
shapes      in segmentation jobs: the profile's segmenter, never one under test, finds the classes where the mask has
            them (mean over classes of IoU divided by the IoU that it reaches in the source, at most 1); left out where
            the profile has none, or it sees no class of the mask in the source
things      the same of things, one by one: the share of those that it finds in the source (IoU of 0.5) and in the image
fit         the image fits the new caption about as well as the source fits its own (difference of the scorer's
            cosines): it falls when something besides the edit has changed

Those of LANCE (arXiv 2305.19164, section 3.3), for images edited in place; `caption`, `label`, `recaption`, `shapes`
and `things` as above:

likeness    image and source image are alike (cosine)
match       image and new caption are alike (cosine)
direction   the image moved away from the source as the new caption did from the old: φ, the cosine of both differences.
            The paper prints 1 - cos (equation 2) but keeps φ > τ; ours is the cosine. Where a difference is zero there
            is no direction, and the edit is refused as `no change`

LANCE-R has one more (`WORD_CHECKS`): the image is nearer to the new word than to the old one (`word`).

A null arm has scores too, and `judge_arm` holds it to what its edit is held to, as far as that is not about the change
(`ARM_CHECKS`): it still shows the source's class and shapes, at the thresholds of the edit's factor. The edit keeps its
own verdict. An image that the generator could not compute is refused as `not finite`; a null arm of this kind refuses
the edits that are compared with it (`schedule.py`). Thresholds belong to the scorer's weights and to the factor of the
edit, and come from the profile; a check without thresholds only scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.methods.counterfactual import Edit, MethodImage, TaskDescription, Verdict
from gateway.methods.recaption import Recaptioned, recaptioned
from shared.chunks import chunks
from shared.endpoints import Services
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedRequest, ShapesReply, ShapesRequest, StructureRequest

Thresholds = Mapping[str, Mapping[str, float]]  # check -> factor, or `default` for factors not listed -> lowest score
Scores = dict[str, float]
Vector = NDArray[np.float64]

CHECKS = ("structure", "caption", "label", "recaption", "shapes", "things", "fit")
EDIT_CHECKS = ("likeness", "match", "caption", "label", "recaption", "shapes", "things", "direction")
WORD_CHECKS = ("likeness", "match", "caption", "word", "label", "recaption", "shapes", "things", "direction")
ARM_CHECKS = ("structure", "likeness", "label", "recaption", "shapes", "things")  # of these, those that its edit has
ALL_NAMED: Thresholds = {"recaption": {"default": 1.0}}  # where nobody wants another
KEPT = 0.5  # IoU from which a thing is where it was
_ZERO = 1e-6  # length of a difference of unit vectors that is none
# Zero-shot prompts, averaged per class as CLIP's authors do (arXiv 2103.00020, section 3.1.4).
TEMPLATES = ("a photo of a {}.", "a picture of a {}.", "There is a {}.", "a {}", "{}")
MAX_PROMPTS = 200  # a larger label set is asked with the first template only
MAX_TEXTS = 256  # per message


NOT_FINITE = Verdict(False, "not finite", "the generator computed NaN or infinity; there is no image")


class Rendered(Protocol):
    """Images of one source (None: not finite), and the mask of what must stay in it, as the editors answer them."""

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
    """The one service that `shape_scores` asks."""

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
) -> list[tuple[Verdict, Scores]]:
    """Verdict and scores of each image of a reply; `edits` are the images' edits in order, None for a null arm.

    An image that is None is refused as `not finite`, without scores, whatever its arm.

    Scores by name: `structure` (0 to 1), `caption` (cosine margin), `caption_gain` (that margin less the source
    image's own), `fit` (cosine of image and new caption less that of source and old caption), `match` (the first of
    these), `direction` (cosine; left out where image or caption did not change), `likeness` (cosine of image and
    source), `word` (cosine margin of the new phrase over the old, where `checks` has it), and where they are known
    `label` (probability of the ground truth), `label_margin` (that less the greatest of the other classes),
    `recaption`, `shapes` and `things` (0 to 1). The verdict is by `checks`. One call to embed and those for class
    prompts, one for structure, in segmentation jobs one for shapes, and with `recaption` two for captions, since a
    reply holds at most 15 images.
    """
    if len(edits) != len(reply.images):
        raise ValueError(f"{len(reply.images)} images need as many edits: {len(edits)}")
    finite = [(image, edit) for image, edit in zip(reply.images, edits, strict=True) if image is not None]
    if not finite:
        return [(NOT_FINITE, {})] * len(edits)
    pictures = Pictures([image for image, _ in finite], reply.keep_mask)
    checked = iter(
        _check_finite(services, source, task, pictures, [edit for _, edit in finite], thresholds, checks, recaption)
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
) -> list[tuple[Verdict, Scores]]:
    agreements = services.structure(StructureRequest(source=source.image, images=reply.images, mask=reply.keep_mask))
    changes = [change for edit in edits if edit and "word" in checks for change in edit.changes]
    words = list(dict.fromkeys(phrase for change in changes for phrase in (change.from_phrase, change.to_phrase)))
    scorer = _embed(services, source, task, reply, edits, words)
    shapes = shape_scores(services, source, task, reply.images)
    new_captions = recaptioned(services, source, task, reply.images) if recaption else [None] * len(reply.images)
    results = []
    for image, edit, agreement, kept, new in zip(
        scorer.images, edits, agreements.agreements, shapes, new_captions, strict=True
    ):
        scores = {"structure": agreement, **scorer.caption_scores(image, edit), **scorer.label_scores(image), **kept}
        if new:
            scores["recaption"] = new.named
        if edit and words:
            scores["word"] = scorer.word_score(image, edit)
        verdict = Verdict(True) if edit is None else judge(scores, edit, {**ALL_NAMED, **thresholds}, checks)
        results.append((_quoting(new, verdict), scores))
    return results


def _quoting(new: Recaptioned | None, verdict: Verdict) -> Verdict:
    """A verdict by the new caption says what that is."""
    if new is None or verdict.check != "recaption":
        return verdict
    return replace(verdict, reason=f"{verdict.reason}: “{new.caption}”")


def shape_scores(
    services: ShapeService, source: MethodImage, task: TaskDescription, images: Sequence[ImagePayload]
) -> list[Scores]:
    """`shapes` and `things` of images of one source, as far as the segmenter can say; none but in segmentation jobs."""
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
            shapes["things"] = float(np.mean([iou >= KEPT for iou in outcome.things]))
        scores.append(shapes)
    return scores


def judge(scores: Scores, edit: Edit, thresholds: Thresholds, checks: Sequence[str] = CHECKS) -> Verdict:
    """The verdict that scores earn; an edit of several factors needs the strictest of their thresholds."""
    if "direction" in checks and "direction" not in scores:
        return Verdict(False, "no change", "the scorer sees no difference in the image or in the caption")
    for check in checks:
        if check not in scores or check not in thresholds:
            continue
        lowest = max(_threshold(thresholds[check], change.factor) for change in edit.changes)
        if scores[check] < lowest or (check == "label" and scores["label_margin"] <= 0):
            return Verdict(False, check, _reason(check, scores, lowest))
    return Verdict(True)


def judge_arm(scores: Scores, edit: Edit, thresholds: Thresholds, checks: Sequence[str] = CHECKS) -> Verdict:
    """The verdict on the arm that an edit is compared with: the edit's checks of class and shapes, at its limits."""
    return judge(scores, edit, {**ALL_NAMED, **thresholds}, [check for check in checks if check in ARM_CHECKS])


def skipped_checks(source: MethodImage, task: TaskDescription) -> tuple[str, ...]:
    """The names of the checks that this source image and task leave out."""
    return () if _classes(source, task) else ("label",)


def _threshold(by_factor: Mapping[str, float], factor: str) -> float:
    return by_factor.get(factor, by_factor["default"])


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
    "label": "the ground truth has a probability of only {score:.0%}; expected at least {lowest:.0%}",
}


def _reason(check: str, scores: Scores, lowest: float) -> str:
    if check == "label" and scores["label_margin"] <= 0:
        return f"another class is more probable than the ground truth, which has a probability of {scores[check]:.0%}"
    return _REASONS[check].format(score=scores[check], lowest=lowest)


@dataclass(frozen=True, slots=True)
class _Embedded:
    """Unit vectors in the scorer's space: of the source image, the rendered images, captions, classes and words."""

    source: Vector
    images: Vector
    captions: Mapping[str, Vector]
    classes: Vector
    truth: int
    words: Mapping[str, Vector]
    logit_scale: float

    def caption_scores(self, image: Vector, edit: Edit | None) -> Scores:
        """How much nearer the image is to the new caption than to the old, and how it got there."""
        likeness = {"likeness": float(image @ self.source)}
        if edit is None:
            return likeness
        old, new = self.captions[edit.caption], self.captions[edit.new_caption]
        moved, meant = image - self.source, new - old
        lengths = float(np.linalg.norm(moved)), float(np.linalg.norm(meant))
        direction = {"direction": float(moved @ meant) / (lengths[0] * lengths[1])} if min(lengths) > _ZERO else {}
        return (
            likeness
            | direction
            | {
                "match": float(image @ new),
                "caption": float(image @ (new - old)),
                "caption_gain": float((image - self.source) @ (new - old)),
                "fit": float(image @ new - self.source @ old),
            }
        )

    def word_score(self, image: Vector, edit: Edit) -> float:
        """How much nearer the image is to the new phrases than to the old ones; the least of the changes."""
        words = self.words
        return min(float(image @ (words[change.to_phrase] - words[change.from_phrase])) for change in edit.changes)

    def label_scores(self, image: Vector) -> Scores:
        """The probability of the ground truth, and its lead over the most probable other class."""
        if not len(self.classes):
            return {}
        logits = self.logit_scale * (self.classes @ image)
        odds = np.exp(logits - logits.max())
        probabilities = odds / odds.sum()
        others = np.delete(probabilities, self.truth)
        truth = float(probabilities[self.truth])
        return {"label": truth, "label_margin": truth - float(others.max())}


def _embed(
    services: Services,
    source: MethodImage,
    task: TaskDescription,
    reply: Pictures,
    edits: Sequence[Edit | None],
    words: Sequence[str],
) -> _Embedded:
    captions = list(dict.fromkeys(text for edit in edits if edit for text in (edit.caption, edit.new_caption)))
    classes = _classes(source, task)
    templates = TEMPLATES if (len(classes) + len(words)) * len(TEMPLATES) <= MAX_PROMPTS else TEMPLATES[:1]
    texts = [*captions, *_prompts(words, templates)]
    first = services.embed(EmbedRequest(images=[source.image, *reply.images], texts=texts[:MAX_TEXTS]))
    vectors = np.asarray([*first.texts, *_embed_texts(services, texts[MAX_TEXTS:])])
    # Class prompts go in messages of their own: they are the same for every image, so each is recorded once.
    names = [label.split(",")[0] for label in classes]
    of_classes = np.asarray(_embed_texts(services, _prompts(names, templates)))
    return _Embedded(
        source=np.asarray(first.images[0]),
        images=np.asarray(first.images[1:]),
        captions=dict(zip(captions, vectors, strict=False)),
        classes=_means(of_classes, len(templates)),
        words=dict(zip(words, _means(vectors[len(captions) :], len(templates)), strict=True)),
        truth=classes.index(source.ground_truth) if source.ground_truth in classes else -1,
        logit_scale=first.logit_scale,
    )


def _prompts(names: Sequence[str], templates: Sequence[str]) -> list[str]:
    return [template.format(name) for name in names for template in templates]


def _embed_texts(services: Services, texts: Sequence[str]) -> list[list[float]]:
    rows: list[list[float]] = []
    for part in chunks(texts, MAX_TEXTS):
        rows += services.embed(EmbedRequest(texts=list(part))).texts
    return rows


def _means(vectors: Vector, templates: int) -> Vector:
    """The unit mean of each name's prompts; `vectors` are prompts × width, names in order."""
    if not len(vectors):
        return vectors
    means: Vector = vectors.reshape(-1, templates, vectors.shape[1]).mean(axis=1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return means


def _classes(source: MethodImage, task: TaskDescription) -> list[str]:
    """The label set of the label check; empty where it has nothing to tell apart."""
    if source.ground_truth is None:
        return []
    classes = list(dict.fromkeys((*task.classes, source.ground_truth)))
    return classes if len(classes) > 1 else []
