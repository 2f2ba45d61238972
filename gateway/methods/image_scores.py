"""Images, captions, classes and words as vectors in the space of the evaluator's scorer. `CHECKS` scores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from gateway.methods.counterfactual import Edit, MethodImage, TaskDescription
from shared.chunks import chunks
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedReply, EmbedRequest

Vector = NDArray[np.float64]
Embed = Callable[[EmbedRequest], EmbedReply]  # the scorer's call, or the second scorer's

# Zero-shot prompts, averaged per class as CLIP's authors do (arXiv 2103.00020, section 3.1.4).
TEMPLATES = ("a photo of a {}.", "a picture of a {}.", "There is a {}.", "a {}", "{}")
MAX_PROMPTS = 200  # a larger label set is embedded by the first template only
MAX_TEXTS = 256  # per message


@dataclass(frozen=True, slots=True)
class ImageVectors:
    """A rendered image in a scorer's space, and what it is compared with: all unit vectors.

    `captions`: the old and the new one; None for a null arm, which has no edit. `words`: the old and the new phrase of
    each change, where they are embedded. `classes` are those that the label check compares, `truth` the place of the
    ground truth among them.
    """

    image: Vector
    source: Vector
    captions: tuple[Vector, Vector] | None
    words: tuple[tuple[Vector, Vector], ...]
    classes: Vector
    truth: int
    logit_scale: float

    def probabilities(self) -> Vector:
        """The zero-shot probability of each class."""
        return np.asarray(softmax(self.logit_scale * (self.classes @ self.image)))

    def rank(self, image: Vector) -> float:
        """The place of the ground truth among the classes; a class that is as close comes before it."""
        cosines = self.classes @ image
        return 1.0 + np.count_nonzero(np.delete(cosines, self.truth) >= cosines[self.truth])


def embed_images(
    embed: Embed,
    source: MethodImage,
    task: TaskDescription,
    images: Sequence[ImagePayload],
    edits: Sequence[Edit | None],
    *,
    words: bool,
) -> list[ImageVectors]:
    """The vectors of images of one source by the scorer that `embed` calls; `edits` has None for a null arm.

    Sends one request to embed the images, and others for the class prompts, which are equal for all images.
    """
    changes = [change for edit in edits if edit and words for change in edit.changes]
    phrases = list(dict.fromkeys(phrase for change in changes for phrase in (change.from_phrase, change.to_phrase)))
    captions = list(dict.fromkeys(text for edit in edits if edit for text in (edit.caption, edit.new_caption)))
    classes = label_set(source, task)
    templates = TEMPLATES if (len(classes) + len(phrases)) * len(TEMPLATES) <= MAX_PROMPTS else TEMPLATES[:1]
    texts = [*captions, *_prompts(phrases, templates)]
    first = embed(EmbedRequest(images=[source.image, *images], texts=texts[:MAX_TEXTS]))
    vectors = np.asarray([*first.texts, *_embed_texts(embed, texts[MAX_TEXTS:])])
    # Class prompts have separate messages: they are the same for every image, so each is recorded once.
    names = [label.split(",")[0] for label in classes]
    of_classes = np.asarray(_embed_texts(embed, _prompts(names, templates)))
    class_vectors = _means(of_classes, len(templates))
    by_text = dict(zip(captions, vectors, strict=False))
    by_phrase = dict(zip(phrases, _means(vectors[len(captions) :], len(templates)), strict=True))
    return [
        ImageVectors(
            image=np.asarray(image),
            source=np.asarray(first.images[0]),
            captions=(by_text[edit.caption], by_text[edit.new_caption]) if edit else None,
            words=tuple((by_phrase[change.from_phrase], by_phrase[change.to_phrase]) for change in edit.changes)
            if edit and words
            else (),
            classes=class_vectors,
            truth=classes.index(source.ground_truth) if source.ground_truth in classes else -1,
            logit_scale=first.logit_scale,
        )
        for image, edit in zip(first.images[1:], edits, strict=True)
    ]


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
