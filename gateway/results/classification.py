"""A job's rows as typed arrays: what the analysis computes on. Some 100 bytes a counterfactual and model under test."""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from gateway.analysis.effects import Integers, Outcomes, Predictions
from gateway.analysis.funnel import Fate
from gateway.analysis.validity import Screened
from gateway.database.tables import Job
from gateway.results.reviewed_edits import ReviewedJob, load_reviews
from gateway.results.segmentation import SegmentedColumns, SegmentedRows
from gateway.results.stream import CounterfactualRow, PredictionRow, SourceRows, cells_of, relation_of, stream_sources
from shared.schemas.results import Cell, Relation


@dataclass(slots=True)
class MethodRows:
    """What a method made: the fate of each edit, and the network evaluations of all renderings."""

    fates: list[Fate] = field(default_factory=list)
    evaluations: int = 0


class ModelRows(NamedTuple):
    """What one model under test said of what one method made.

    `outcomes` has the accepted counterfactuals with their null arms and originals. `left_out`: no ground truth (in a
    job that has some), a class that the model does not know, or a prediction missing. `screened` has the rendered
    edits of each cell, accepted or not.
    """

    outcomes: Outcomes
    left_out: int
    screened: dict[Cell, Screened]


@dataclass(frozen=True, slots=True)
class JobRows:
    """Everything that the figures of a job are computed from, in a fixed order.

    `labels` are the ground truths of the source images that did not fail, of each image its label or the classes of its
    mask; `failed` counts the others. Of a segmentation job `segmented` takes the place of `models`.
    `reviewed` has what people said of its edits.
    """

    job: Job
    relation: Relation
    labels: list[tuple[str, ...]]
    failed: int
    methods: dict[str, MethodRows]
    models: dict[tuple[str, str], ModelRows]  # by model under test and method
    segmented: dict[tuple[str, str], SegmentedRows]
    reviewed: ReviewedJob


def load_rows(session: Session, job_id: str) -> JobRows:
    """All rows of a job, streamed: what stays in memory are the figures."""
    job = session.get_one(Job, job_id)
    relation = relation_of(session, job_id)
    methods = {str(method["name"]): MethodRows() for method in job.methods}
    pairs = [(model, method) for model in job.models for method in methods]
    segments = job.kind == "segmentation"
    columns = {} if segments else {pair: _Columns(relation) for pair in pairs}
    segmented = {pair: SegmentedColumns(relation, job.classes) for pair in pairs} if segments else {}
    taking: dict[tuple[str, str], _Columns | SegmentedColumns] = {**columns, **segmented}
    reviewed = ReviewedJob(load_reviews(session, job_id), relation, methods, job.models)
    labels: list[tuple[str, ...]] = []
    failed = 0
    for number, rows in enumerate(stream_sources(session, job_id, relation)):
        if rows.source.state == "failed":
            failed += 1
        else:
            labels.append(
                _once(rows.source.mask_classes or ([rows.source.ground_truth] if rows.source.ground_truth else []))
            )
        reviewed.add(number, rows)
        made = {method: [row for row in rows.counterfactuals if row.method == method] for method in methods}
        for method, found in methods.items():
            _note_fates(found, made[method], rows.source.id)
        for model in job.models:
            said = rows.said_by(model)
            for method in methods:
                taking[model, method].add(number, rows, made[method], said)
    return JobRows(
        job,
        relation,
        labels,
        failed,
        methods,
        {pair: found.rows() for pair, found in columns.items()},
        {pair: found.rows() for pair, found in segmented.items()},
        reviewed,
    )


def _note_fates(found: MethodRows, made: list[CounterfactualRow], source: str) -> None:
    for row in made:
        found.evaluations += row.evaluations or 0
        if row.arm == "edit":
            refused_by = "" if row.accepted else sys.intern(row.check)
            shapes, recaptioned = row.shapes is not None, row.recaption is not None
            found.fates.append(Fate(source, row.rendered, refused_by, shapes, recaptioned))


class _Seen(NamedTuple):
    """One image as a model under test saw it."""

    p_truth: float
    rank: int
    predicted: str


class _Columns:
    """What one model said of what one method made, source image by source image, 8 bytes a figure."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._left_out = 0
        self._number = array("q")
        self._ordinal = array("q")
        self._null_ordinal = array("q")
        self._p_truth = [array("d") for _ in range(3)]  # of the original, the null arm, the counterfactual
        self._rank = [array("q") for _ in range(3)]
        self._predicted = [array("q") for _ in range(3)]
        self._codes: dict[str, int] = {}
        self._cells: defaultdict[Cell, array[int]] = defaultdict(lambda: array("q"))
        self._screened: defaultdict[Cell, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("b")))

    def add(self, number: int, rows: SourceRows, made: list[CounterfactualRow], said: dict[str, PredictionRow]) -> None:
        """Take in one source image, `made` being what the method made of it."""
        original = said.get(rows.source.id)
        label = rows.label(original, self._relation)
        ids = {row.ordinal: row.id for row in made}
        for row in made:
            if row.arm != "edit":
                continue
            cells = dict.fromkeys(cells_of(row, label)) if label is not None else {}
            if row.rendered:
                for cell in cells:
                    numbers, verdicts = self._screened[cell]
                    numbers.append(number)
                    verdicts.append(row.accepted)
            if not row.accepted:
                continue
            null_id = row.source if row.null_ordinal is None else ids.get(row.null_ordinal, "")
            if not self._keep(number, row, label, [said.get(image) for image in (row.source, null_id, row.id)]):
                self._left_out += 1
                continue
            for cell in cells:
                self._cells[cell].append(len(self._number) - 1)

    def _keep(self, number: int, row: CounterfactualRow, label: str | None, said: list[PredictionRow | None]) -> bool:
        seen = [_seen(prediction, label, self._relation) for prediction in said] if label is not None else [None]
        known = [image for image in seen if image is not None]
        if len(known) < len(said):
            return False
        self._number.append(number)
        self._ordinal.append(row.ordinal)
        self._null_ordinal.append(-1 if row.null_ordinal is None else row.null_ordinal)
        for image, p_truth, rank, predicted in zip(known, self._p_truth, self._rank, self._predicted, strict=True):
            p_truth.append(image.p_truth)
            rank.append(image.rank)
            predicted.append(self._codes.setdefault(image.predicted, len(self._codes)))
        return True

    def rows(self) -> ModelRows:
        """What was taken in, as arrays."""
        place = np.argsort(np.argsort(list(self._codes)))  # classes are numbered by name, whoever said one first
        number, null_ordinal = np.asarray(self._number), np.asarray(self._null_ordinal)
        null_arm = number * (null_ordinal.max(initial=0) + 2) + null_ordinal + 1
        original, null, counterfactual = (
            Predictions(np.asarray(p_truth), np.asarray(rank), _renumbered(place, predicted))
            for p_truth, rank, predicted in zip(self._p_truth, self._rank, self._predicted, strict=True)
        )
        outcomes = Outcomes(
            source=number,
            ordinal=np.asarray(self._ordinal),
            null_arm=np.unique(null_arm, return_inverse=True)[1],
            original=original,
            null=null,
            counterfactual=counterfactual,
            cells={cell: np.asarray(places) for cell, places in self._cells.items()},
        )
        screened = {
            cell: Screened(np.asarray(numbers), np.asarray(verdicts).astype(bool))
            for cell, (numbers, verdicts) in self._screened.items()
        }
        return ModelRows(outcomes, self._left_out, screened)


def _renumbered(place: NDArray[np.int_], codes: array[int]) -> Integers:
    return place[np.asarray(codes)] if codes else np.zeros(0, np.int64)


def _once(labels: Sequence[str]) -> tuple[str, ...]:
    """One object for equal labels, of which a job has few."""
    return tuple(map(sys.intern, labels))


def _seen(row: PredictionRow | None, label: str, relation: Relation) -> _Seen | None:
    if row is None:
        return None
    if relation == "labelled":
        return None if row.rank is None or row.p_truth is None else _Seen(row.p_truth, row.rank, row.predicted)
    for place, entry in enumerate(row.top or [], start=1):
        if entry["class"] == label:
            return _Seen(float(entry["probability"]), place, row.predicted)
    return _Seen(float("nan"), len(row.top or []) + 1, row.predicted)  # outside what was kept: unknown, not 0
