"""Corroboration of findings by the job's own images: those that show the value beside those that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.own_images import (
    Booleans,
    Marks,
    difference_interval,
    images_to_mark,
    own_samples,
    value_probabilities,
)
from gateway.feedback.marks import Marked
from gateway.results.cells import with_cells
from gateway.results.own_images import CaptionsByValue, OwnImages, Photograph
from gateway.results.wording import add_details, corroboration_sentence
from shared.schemas.effects import Cell, CellEffect, Corroboration, OwnImage, OwnImageMarks
from shared.schemas.own_images import ShownMark
from shared.schemas.results import JobResults, ModelResults

LISTED = 48


@dataclass(frozen=True, slots=True)
class Vectors:
    """The scorer's unit vectors of images, by digest, and of texts."""

    images: Mapping[str, Floats]
    texts: Mapping[str, Floats]
    logit_scale: float


@dataclass(frozen=True, slots=True)
class _Compared:
    """The images of a finding's class, in equal order: the scorer's probability and choice, marks, and the outcome."""

    images: Sequence[Photograph]
    probability: Floats
    chosen: Booleans
    marks: Sequence[ShownMark | None]
    correct: Booleans
    groups: Integers

    @property
    def mark_arrays(self) -> Marks:
        """The marks as arrays."""
        return Marks(*(np.array([mark == word for mark in self.marks], np.bool_) for word in ("yes", "no", "unsure")))


def with_corroboration(results: JobResults, images: OwnImages, vectors: Vectors) -> JobResults:
    """The results; each finding has the comparison of the images of its class that show its value with the others."""

    def corroborate(figures: ModelResults, effect: CellEffect) -> CellEffect:
        if effect.standing not in ("weakness", "improvement"):
            return effect
        return _corroborate_effect(figures.model, figures.method, effect, images, vectors)

    return results.model_copy(update={"results": with_cells(results.results, corroborate)})


def _corroborate_effect(
    model: str, method: str, effect: CellEffect, user_images: OwnImages, vectors: Vectors
) -> CellEffect:
    captions = user_images.captions.get((method, effect.cell))
    compared = _compared(model, effect.cell, captions, user_images, vectors) if captions else None
    if captions is None or compared is None:
        return effect
    samples = own_samples(compared.chosen, compared.mark_arrays)
    showing, remaining = (
        clustered_rate(compared.correct[mask], compared.groups[mask]) for mask in (samples.showing, samples.rest)
    )
    changed, unchanged = (showing, remaining) if effect.cell.direction == "to" else (remaining, showing)
    comparable = changed.value is not None and unchanged.value is not None
    digests = [image.digest for image in compared.images]
    corroboration = Corroboration(
        others=sorted(set(captions) - {effect.cell.value}),
        showing=showing,
        rest=remaining,
        difference=(changed.value or 0.0) - (unchanged.value or 0.0) if comparable else None,
        interval=difference_interval(changed, unchanged),
        images=_list_images(compared, samples.showing),
        sampled_of=user_images.sampled_of.get(effect.cell.label),
        chosen_by=samples.chosen_by,
        marks=_count_marks(compared),
        to_mark=images_to_mark(digests, compared.chosen, compared.probability),
    )
    details = add_details(effect.details, corroboration_sentence(corroboration, effect.cell.value))
    return effect.model_copy(update={"corroboration": corroboration, "details": details})


def _compared(
    model: str, cell: Cell, captions: CaptionsByValue, user_images: OwnImages, vectors: Vectors
) -> _Compared | None:
    """The images of a cell's class that the model predicted; None if there are none."""
    right = user_images.right.get(model, {})
    images = [image for image in user_images.photographs if image.label == cell.label and image.id in right]
    if not images:
        return None
    names = list(captions)
    values = np.stack([_mean([vectors.texts[text] for text in captions[name]]) for name in names])
    embedded = np.stack([vectors.images[image.digest] for image in images])
    probabilities = value_probabilities(embedded, values, vectors.logit_scale)
    place = names.index(cell.value)
    return _Compared(
        images,
        probabilities[:, place],
        np.asarray(probabilities.argmax(axis=1) == place),
        [user_images.marks.get(Marked(image.digest, cell.factor, cell.value)) for image in images],
        np.asarray([right[image.id] for image in images]),
        np.unique([image.group for image in images], return_inverse=True)[1],
    )


def _count_marks(compared: _Compared) -> OwnImageMarks | None:
    confirmed, refused, undecided = compared.mark_arrays
    if not (confirmed | refused | undecided).any():
        return None
    decided = compared.chosen & (confirmed | refused)
    return OwnImageMarks(
        confirmed=int(confirmed.sum()),
        refused=int(refused.sum()),
        undecided=int(undecided.sum()),
        missed=int((confirmed & ~compared.chosen).sum()),
        precision=clustered_rate(confirmed[decided], compared.groups[decided]),
    )


def _list_images(compared: _Compared, showing: Booleans) -> list[OwnImage]:
    order = [index for index in np.argsort(-compared.probability, kind="stable") if showing[index]]
    return [
        OwnImage(
            id=compared.images[index].id,
            image=compared.images[index].digest,
            file_name=compared.images[index].file_name,
            probability=float(compared.probability[index]),
            correct=bool(compared.correct[index]),
            marked=compared.marks[index],
        )
        for index in order[:LISTED]
    ]


def _mean(vectors: Sequence[Floats]) -> Floats:
    mean = np.mean(vectors, axis=0)
    return np.asarray(mean / np.linalg.norm(mean))
