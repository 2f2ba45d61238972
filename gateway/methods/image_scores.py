"""Scores of images by the evaluator's scorer: cosines of images, captions, classes and words in its space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from gateway.methods.counterfactual import Edit, MethodImage, Scores, TaskDescription
from shared.chunks import chunks
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedReply, EmbedRequest

Vector = NDArray[np.float64]
Embed = Callable[[EmbedRequest], EmbedReply]  # the scorer's call, or the second scorer's

_ZERO = 1e-6  # a shorter difference of unit vectors has no direction
# Zero-shot prompts, averaged per class as CLIP's authors do (arXiv 2103.00020, section 3.1.4).
TEMPLATES = ("a photo of a {}.", "a picture of a {}.", "There is a {}.", "a {}", "{}")
MAX_PROMPTS = 200  # a larger label set is embedded by the first template only
MAX_TEXTS = 256  # per message
MANY_CLASSES = 100  # of a larger label set the first five count, as on ImageNet
FIRST_OF_MANY = 5


def score_images(
    embed: Embed,
    source: MethodImage,
    task: TaskDescription,
    images: Sequence[ImagePayload],
    edits: Sequence[Edit | None],
    *,
    words: bool,
) -> list[Scores]:
    """The scores of images of one source by the scorer that `embed` calls.

    `edits` has the edit of each image in order, None for a null arm.

    likeness      cosine of image and source
    match         cosine of image and new caption
    caption       `match` minus the cosine of image and old caption
    caption_gain  `caption` minus the same difference for the source
    fit           `match` minus the cosine of source and old caption
    direction     cosine of (image - source) and (new caption - old caption); missing if either difference is zero
    word          with `words`: cosine of image and new phrase minus that of image and old phrase, least over changes
    label         zero-shot probability of the ground truth (0 to 1)
    label_margin  `label` minus the greatest probability of another class
    label_rank    the place of the ground truth among the classes by probability, 1 for the most probable
    label_rank_limit  the last place at which it counts as kept: 1 (5 with over 100 classes), or its place in the source
                  if that is later, since a scorer that misjudges the source says little about the image

    A null arm has `likeness` and the scores of the label only. The latter need a ground truth and a label set.
    Sends one request to embed the images, and others for the class prompts, which are equal for all images.
    """
    changes = [change for edit in edits if edit and words for change in edit.changes]
    phrases = list(dict.fromkeys(phrase for change in changes for phrase in (change.from_phrase, change.to_phrase)))
    vectors = _embed(embed, source, task, images, edits, phrases)
    scores_of_images = []
    for image, edit in zip(vectors.images, edits, strict=True):
        scores = {**vectors.caption_scores(image, edit), **vectors.label_scores(image)}
        scores_of_images.append(scores | {"word": vectors.word_score(image, edit)} if edit and words else scores)
    return scores_of_images


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
        """The scores `match`, `caption`, `caption_gain`, `fit` and `direction` of an image."""
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
        """How much closer the image is to the new phrase than to the old one, least over the changes."""
        words = self.words
        return min(float(image @ (words[change.to_phrase] - words[change.from_phrase])) for change in edit.changes)

    def label_scores(self, image: Vector) -> Scores:
        """The probability of the ground truth, its lead over the next class, its rank and the last rank that counts."""
        if not len(self.classes):
            return {}
        probabilities = np.asarray(softmax(self.logit_scale * (self.classes @ image)))
        other_probabilities = np.delete(probabilities, self.truth)
        truth = float(probabilities[self.truth])
        first = FIRST_OF_MANY if len(self.classes) > MANY_CLASSES else 1
        return {
            "label": truth,
            "label_margin": truth - float(other_probabilities.max()),
            "label_rank": self._rank(image),
            "label_rank_limit": max(float(first), self._rank(self.source)),
        }

    def _rank(self, image: Vector) -> float:
        """The place of the ground truth among the classes; a class that is as close comes before it."""
        cosines = self.classes @ image
        return 1.0 + np.count_nonzero(np.delete(cosines, self.truth) >= cosines[self.truth])


def _embed(
    embed: Embed,
    source: MethodImage,
    task: TaskDescription,
    images: Sequence[ImagePayload],
    edits: Sequence[Edit | None],
    words: Sequence[str],
) -> _Embedded:
    captions = list(dict.fromkeys(text for edit in edits if edit for text in (edit.caption, edit.new_caption)))
    classes = label_set(source, task)
    templates = TEMPLATES if (len(classes) + len(words)) * len(TEMPLATES) <= MAX_PROMPTS else TEMPLATES[:1]
    texts = [*captions, *_prompts(words, templates)]
    first = embed(EmbedRequest(images=[source.image, *images], texts=texts[:MAX_TEXTS]))
    vectors = np.asarray([*first.texts, *_embed_texts(embed, texts[MAX_TEXTS:])])
    # Class prompts have separate messages: they are the same for every image, so each is recorded once.
    names = [label.split(",")[0] for label in classes]
    of_classes = np.asarray(_embed_texts(embed, _prompts(names, templates)))
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


def _embed_texts(embed: Embed, texts: Sequence[str]) -> list[list[float]]:
    rows: list[list[float]] = []
    for chunk in chunks(texts, MAX_TEXTS):
        rows += embed(EmbedRequest(texts=list(chunk))).texts
    return rows


def _means(vectors: Vector, templates: int) -> Vector:
    """The unit mean of each name's prompts; `vectors` are prompts × width, names in order."""
    if not len(vectors):
        return vectors
    means: Vector = vectors.reshape(-1, templates, vectors.shape[1]).mean(axis=1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return means


def label_set(source: MethodImage, task: TaskDescription) -> list[str]:
    """The classes that the label check compares; empty without ground truth or a second class."""
    if source.ground_truth is None:
        return []
    classes = list(dict.fromkeys((*task.classes, source.ground_truth)))
    return classes if len(classes) > 1 else []


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
