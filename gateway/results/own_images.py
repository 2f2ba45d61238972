"""The job's own images for the corroboration of its findings: the images of their classes, captions, and marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Subquery, func, select
from sqlalchemy.orm import Session

from gateway.database.columns import StoredChange
from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.feedback.marks import Marked, load_marks
from gateway.kinds import of_metric
from gateway.results.cells import value_side
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.own_images import ShownMark
from shared.schemas.results import JobResults
from shared.schemas.scores import HELD, whole

CAPTIONS = 8  # of each value; their mean is the value's text
SAMPLE = 2_000  # images of each class; more narrow the intervals little, and each needs its vector

CaptionsByValue = dict[str, list[str]]


class Photograph(NamedTuple):
    """A finished source image with ground truth. Images of one `group` are not independent."""

    id: str
    digest: str
    file_name: str
    label: str
    group: str


@dataclass(frozen=True, slots=True)
class OwnImages:
    """What the comparison needs: the job's images, whether each model is right on them, and captions with the values.

    `photographs` are the images of each class, or a random sample; `sampled_of` counts the images of each sampled
    class. `captions` has those of the value and of the values that it is compared with, for each method and cell.
    `marks`: what most people saw.
    """

    owner_id: str
    photographs: list[Photograph]
    sampled_of: dict[str, int]
    right: dict[str, dict[str, bool]]
    captions: dict[tuple[str, Cell], CaptionsByValue]
    marks: dict[Marked, ShownMark]

    def digests(self) -> list[str]:
        """The images of the sample, each once."""
        return list(dict.fromkeys(image.digest for image in self.photographs))

    def texts(self) -> list[str]:
        """All captions, each once."""
        by_value = (captions for values in self.captions.values() for captions in values.values())
        return list(dict.fromkeys(caption for captions in by_value for caption in captions))


def load_own_images(session: Session, job_id: str, results: JobResults, most: int = SAMPLE) -> OwnImages | None:
    """The own images of a job for its findings, at most `most` of each class.

    The sample of a class is its first images by digest, an order that does not depend on what they show. None without
    findings of classifiers that have ground truth.
    """
    cells = {(method, effect.cell) for _, method, effect in _findings(results)}
    job = session.get_one(Job, job_id)
    captions = {key: values for key in sorted(cells, key=str) if len(values := _captions(session, job_id, *key)) > 1}
    if not captions:
        return None
    sample = _sample(job_id, {cell.label for _, cell in captions}, most)
    photographs, sampled_of = [], {}
    for name, digest, file, label, group, _, total, _ in session.execute(select(sample).order_by(sample.c.position)):
        independent = f"image {name}" if group is None else f"group {group}"
        photographs.append(Photograph(name, digest, file, label, independent))
        if total > most:
            sampled_of[label] = total
    right, marks = _right(session, job_id, sample), load_marks(session, job_id)
    return OwnImages(job.owner_id, photographs, sampled_of, right, captions, marks)


def _sample(job_id: str, labels: set[str], most: int) -> Subquery:
    """The finished source images of each class that come first by digest, with the number of all of the class."""
    s = SourceImage
    place = func.row_number().over(partition_by=s.ground_truth, order_by=(s.digest, s.id)).label("place")
    total = func.count().over(partition_by=s.ground_truth).label("total")
    columns = (s.id, s.digest, s.file_name, s.ground_truth, s.group_name, s.position, total, place)
    ranked = select(*columns).where(
        s.job_id == job_id, s.state == "done", s.digest.is_not(None), s.ground_truth.in_(labels)
    )
    numbered = ranked.subquery()
    return select(numbered).where(numbered.c.place <= most).subquery()


def _right(session: Session, job_id: str, sample: Subquery) -> dict[str, dict[str, bool]]:
    """Whether each model is right on the images of a sample, by model and id."""
    p = Prediction
    originals = (
        select(p.model, p.source_image_id, p.scores)
        .join(sample, sample.c.id == p.source_image_id)
        .where(p.job_id == job_id, p.counterfactual_id.is_(None))
    )
    right: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    for model, source, scores in session.execute(originals):
        if scores:
            right[model][source] = whole(scores) >= HELD
    return dict(right)


def _findings(results: JobResults) -> Iterator[tuple[str, str, CellEffect]]:
    for figures in results.results:
        if figures.relation == "labelled" and of_metric(figures.metric).one_class:
            yield from ((figures.model, figures.method, effect) for effect in figures.findings)


def _captions(session: Session, job_id: str, method: str, cell: Cell) -> CaptionsByValue:
    """Captions with the value of a cell, and with each value that its rendered edits replace.

    Both come from the same edits, so that they differ in little else.
    """
    c, s = Counterfactual, SourceImage
    edits = (
        select(c.changes, c.caption, c.new_caption)
        .join(s, c.source_image_id == s.id)
        .where(c.job_id == job_id, c.method == method, c.arm == "edit", c.image_digest.is_not(None))
        .where(s.ground_truth == cell.label)
        .order_by(c.position, c.ordinal)
    )
    captions: CaptionsByValue = {cell.value: []}
    for changes, old, new in session.execute(edits):
        for change in changes:
            if not _is_of(change, cell):
                continue
            for value, caption in ((change["from_value"], old), (change["to_value"], new)):
                captions_of_value = captions.setdefault(value, [])
                if caption and caption not in captions_of_value and len(captions_of_value) < CAPTIONS:
                    captions_of_value.append(caption)
    return {value: texts for value, texts in captions.items() if texts}


def _is_of(change: StoredChange, cell: Cell) -> bool:
    """Whether a change belongs to the cell and replaces one value by another."""
    value = change[value_side(cell)]
    exchanged = change["from_value"] and change["to_value"] and change["from_value"] != change["to_value"]
    return bool(exchanged) and change["factor"] == cell.factor and value == cell.value
