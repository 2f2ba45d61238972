"""A job's rows as typed arrays for the analysis, about 130 bytes per counterfactual and model under test."""

from __future__ import annotations

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from gateway.analysis.bounds import Refused
from gateway.analysis.components import RenderingCost
from gateway.analysis.effects import Integers, Originals, Outcomes, Predictions
from gateway.analysis.funnel import EditOutcome
from gateway.analysis.validity import Screened
from gateway.database.tables import Job
from gateway.feedback.reviews import load_reviews
from gateway.jobs.sensitivity import GroupedTruth
from gateway.results.counting import CountingColumns
from gateway.results.edit_phrases import EditPhrases, PhraseColumns
from gateway.results.failure_reasons import asked_again, failure_reasons, label_unchecked, refusal_reason
from gateway.results.original_ranks import OriginalColumns
from gateway.results.originals import judge_of
from gateway.results.pairing import Compared, CounterfactualRow, PredictionRow, Triple, triples
from gateway.results.reviewed_edits import ReviewedJob
from gateway.results.screening import PairScores, ScreeningColumns
from gateway.results.second_scorer import SecondColumns
from gateway.results.segmentation import SegmentedColumns, SegmentedRows
from gateway.results.stream import Numbers, SourceRow, SourceRows, cells_of, number_sources, relation_of, stream_sources
from shared.schemas.effects import Cell
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.results import FailureReason, Relation


@dataclass(slots=True)
class MethodRows:
    """The outcome of each edit of a method, the network evaluations of all its renderings, and those of its arms.

    `refusal`: if no edit was accepted, the most frequent reason. `asked_again`: edits with a repeated question.
    `label_unchecked`: rendered edits whose label can have any rank.
    """

    edits: list[EditOutcome] = field(default_factory=list)
    evaluations: int = 0
    arms: int = 0
    arm_evaluations: int = 0
    refusal: str = ""
    asked_again: int = 0
    label_unchecked: int = 0

    def add(self, row: CounterfactualRow, group: int) -> None:
        """Count an edit or null arm of a source image in this group."""
        self.evaluations += row.evaluations or 0
        if row.arm != "edit":
            self.arms += 1
            self.arm_evaluations += row.evaluations or 0
        else:
            check, lost_to = "" if row.accepted else sys.intern(row.check), sys.intern(row.lost_to)
            shapes_checked, recaptioned = row.shapes is not None, row.recaption is not None
            self.edits.append(EditOutcome(group, row.rendered, check, shapes_checked, recaptioned, lost_to))

    def cost(self) -> RenderingCost:
        """The evaluations of one more source image and of one more rendering, whose arms may be its own or shared.

        Where edits took none (corruptions) or they were not recorded, each image costs 1.
        """
        rendered = max(1, sum(edit.rendered for edit in self.edits))
        sources = max(1, len({edit.group for edit in self.edits}))
        edits, arms = self.evaluations - self.arm_evaluations, self.arm_evaluations
        if edits <= 0:
            edits, arms = rendered, self.arms
        if self.arms >= rendered:
            return RenderingCost(0.0, (edits + arms) / rendered)
        return RenderingCost(arms / sources, edits / rendered)


class ModelRows(NamedTuple):
    """The predictions of one model under test for the counterfactuals of one method.

    `outcomes` has the accepted counterfactuals with their null arms, sham arms and originals. `left_out`: no ground
    truth (in a job that has some), a class that the model does not know, or a prediction missing. `screened` has the
    rendered edits of each cell, accepted or not; `refused` those whose pairs do not count, `second` the pairs
    that the second scorer accepts. `originals` has all source images with a label and a prediction, `phrases` those of
    the `outcomes`. `classes` names the predicted classes by number.
    """

    outcomes: Outcomes
    originals: Originals
    left_out: int
    screened: dict[Cell, Screened]
    refused: dict[Cell, Refused]
    second: SecondColumns
    phrases: EditPhrases
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRows:
    """The input of a job's figures, in a fixed order.

    `truths` has an entry for each finished source image: its label, or the classes of its mask (() without ground
    truth), and its group. `failed` and `cancelled` count the other source images. `failure_reasons`: why source images
    failed. A segmentation job has `segmented` instead of `models`. `reviewed`: the reviews of its edits.
    `checks`: how each model under test stands on the originals.
    """

    job: Job
    relation: Relation
    truths: list[GroupedTruth]
    failed: int
    cancelled: int
    failure_reasons: list[FailureReason]
    methods: dict[str, MethodRows]
    models: dict[tuple[str, str], ModelRows]  # by model under test and method
    segmented: dict[tuple[str, str], SegmentedRows]
    reviewed: ReviewedJob
    checks: dict[str, OriginalsCheck | None]


def load_rows(session: Session, job_id: str) -> JobRows:
    """Stream all rows of a job and keep the arrays that its figures need."""
    job = session.get_one(Job, job_id)
    relation = relation_of(session, job_id)
    methods = {method.name: MethodRows() for method in job.methods}
    pairs = [(model, method) for model in job.models for method in methods]
    segments = job.kind == "segmentation"
    columns = {} if segments else {pair: _Columns(relation) for pair in pairs}
    segmented = {pair: SegmentedColumns(relation, job.classes) for pair in pairs} if segments else {}
    by_pair: dict[tuple[str, str], _Columns | SegmentedColumns] = {**columns, **segmented}
    reviewed = ReviewedJob(load_reviews(session, job_id), relation, methods, job.models)
    truths: list[GroupedTruth] = []
    judges = {model: judge_of(job.kind, job.classes, relation, job.seed) for model in job.models}
    unfinished = Counter[str]()
    for numbers, rows in number_sources(stream_sources(session, job_id, relation)):
        if rows.source.state in ("failed", "cancelled"):
            unfinished[rows.source.state] += 1
        else:
            truths.append(GroupedTruth(_truths(rows.source), numbers.group))
        for row in rows.counterfactuals:
            methods[row.method].add(row, numbers.group)
        reviewed.add(numbers.group, rows)
        edits = _by_method(rows, methods)
        for model in job.models:
            predictions = rows.predictions_of(model)
            judges[model].add(numbers.group, rows.source.ground_truth, predictions.get(rows.source.id))
            for method in methods:
                by_pair[model, method].add(numbers, rows, edits[method], predictions)
    for method, method_rows in methods.items():
        method_rows.asked_again = asked_again(session, job_id, method)
        chosen = next(chosen for chosen in job.methods if chosen.name == method)
        method_rows.label_unchecked = label_unchecked(session, job, chosen)
        if all(edit.rejected_by for edit in method_rows.edits):
            method_rows.refusal = refusal_reason(session, job_id, method)
    return JobRows(
        job,
        relation,
        truths,
        unfinished["failed"],
        unfinished["cancelled"],
        failure_reasons(session, job_id),
        methods,
        {pair: pair_columns.rows() for pair, pair_columns in columns.items()},
        {pair: pair_columns.rows() for pair, pair_columns in segmented.items()},
        reviewed,
        {**{model: judge.check() for model, judge in judges.items()}, **job.stored_spec.refused},
    )


def _truths(source: SourceRow) -> tuple[str, ...]:
    """The classes of the ground truth. Interned, because a job has few distinct classes."""
    return tuple(map(sys.intern, source.mask_classes or ([source.ground_truth] if source.ground_truth else [])))


def _by_method(rows: SourceRows, methods: Iterable[str]) -> dict[str, list[Triple[CounterfactualRow]]]:
    edits: dict[str, list[Triple[CounterfactualRow]]] = {method: [] for method in methods}
    for triple in triples(rows.counterfactuals):
        edits[triple.edit.method].append(triple)
    return edits


class _Score(NamedTuple):
    """A prediction compared with the label of its source image."""

    p_truth: float
    rank: int
    predicted: str
    confidence: float


class _Columns:
    """The predictions of one model for the counterfactuals of one method, source by source, 8 bytes a figure."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._left_out = 0
        self._number, self._group = array("q"), array("q")
        self._ordinal = array("q")
        self._null_ordinal = array("q")
        self._p_truth = [array("d") for _ in Compared._fields]
        self._rank = [array("q") for _ in Compared._fields]
        self._confidence = [array("d") for _ in Compared._fields]
        self._predicted = [array("q") for _ in Compared._fields]
        self._score_columns = (self._p_truth, self._rank, self._predicted, self._confidence)
        self._edit, self._edits = array("q"), 0
        self._counting, self._phrases = CountingColumns(), PhraseColumns()
        self._codes: dict[str, int] = {}
        self._cells: defaultdict[Cell, array[int]] = defaultdict(lambda: array("q"))
        self._screening, self._second, self._originals = ScreeningColumns(), SecondColumns(), OriginalColumns()

    def add(
        self,
        numbers: Numbers,
        rows: SourceRows,
        edits: Sequence[Triple[CounterfactualRow]],
        predictions: Mapping[str, PredictionRow],
    ) -> None:
        """Add the edits of one method of a source image, with one model's predictions."""
        label = rows.label(predictions.get(rows.source.id), self._relation)
        if (original := predictions.get(rows.source.id)) and label is not None:
            score = _score(original, label, self._relation)
            self._originals.add(numbers.group, None if score is None else score.rank, label, original.predicted)
        edit_numbers: dict[tuple[tuple[str, str], ...], int] = {}
        for triple in edits:
            edit = triple.edit
            cells = dict.fromkeys(cells_of(edit, label)) if label is not None else {}
            compared = triple.predictions(predictions)
            scores = self._scores(compared, label)
            self._screening.add(cells, numbers.group, edit, scores)
            self._second.add(cells, numbers, triple, scores.difference)
            if not edit.accepted:
                continue
            if label is None or not self._append(numbers, edit, label, compared):
                self._left_out += 1
                continue
            phrases = self._phrases.add(label, edit.changes)
            self._edit.append(self._edits + edit_numbers.setdefault(phrases, len(edit_numbers)))
            for cell in cells:
                self._cells[cell].append(len(self._number) - 1)
        self._edits += len(edit_numbers)

    def _scores(self, predictions: Compared[PredictionRow], label: str | None) -> PairScores:
        """Whether the model is right (0 or 1) on the image, and on the reference arm."""
        scores = [
            None if label is None else _score(prediction, label, self._relation)
            for prediction in (predictions.counterfactual, predictions.reference)
        ]
        return PairScores(*(None if score is None else float(score.rank == 1) for score in scores))

    def _append(
        self, numbers: Numbers, edit: CounterfactualRow, label: str, predictions: Compared[PredictionRow]
    ) -> bool:
        """Append a row for an edit. False if a prediction is missing."""
        if not edit.comparable:
            predictions = predictions._replace(reference=predictions.null)
        scores = [_score(prediction, label, self._relation) for prediction in predictions]
        complete = [score for score in scores if score is not None]
        if len(complete) < len(scores):
            return False
        self._number.append(numbers.source)
        self._group.append(numbers.group)
        self._ordinal.append(edit.ordinal)
        self._null_ordinal.append(-1 if edit.null_ordinal is None else edit.null_ordinal)
        self._counting.add(edit)
        columns = zip(complete, *self._score_columns, strict=True)
        for score, p_truth, rank, predicted, confidence in columns:
            p_truth.append(score.p_truth)
            confidence.append(score.confidence)
            rank.append(score.rank)
            predicted.append(self._codes.setdefault(score.predicted, len(self._codes)))
        return True

    def rows(self) -> ModelRows:
        """All added rows, as arrays."""
        order = np.argsort(np.argsort(list(self._codes)))  # numbers classes by name, not by first appearance
        number, null_ordinal = np.asarray(self._number), np.asarray(self._null_ordinal)
        null_arm = number * (null_ordinal.max(initial=0) + 2) + null_ordinal + 1
        original, null, counterfactual, reference = (
            Predictions(np.asarray(p_truth), np.asarray(rank), _renumber(order, predicted), np.asarray(confidence))
            for p_truth, rank, predicted, confidence in zip(*self._score_columns, strict=True)
        )
        outcomes = Outcomes(
            source=number,
            group=np.asarray(self._group),
            ordinal=np.asarray(self._ordinal),
            edit=np.asarray(self._edit),
            null_arm=np.unique(null_arm, return_inverse=True)[1],
            original=original,
            null=null,
            counterfactual=counterfactual,
            sham=reference if self._counting.shams else None,
            counting=self._counting.masks(),
            cells={cell: np.asarray(members) for cell, members in self._cells.items()},
        )
        screened, refused, phrases = self._screening.screened(), self._screening.refused(), self._phrases.phrases()
        originals, names = self._originals.arrays(), tuple(sorted(self._codes))
        return ModelRows(outcomes, originals, self._left_out, screened, refused, self._second, phrases, names)


def _renumber(order: NDArray[np.int_], codes: array[int]) -> Integers:
    return order[np.asarray(codes)] if codes else np.zeros(0, np.int64)


def _score(row: PredictionRow | None, label: str, relation: Relation) -> _Score | None:
    if row is None:
        return None
    predicted, confidence = row.predicted, row.probability
    if relation == "labelled":
        true_rank, p_truth = row.rank, row.p_truth
        return None if true_rank is None or p_truth is None else _Score(p_truth, true_rank, predicted, confidence)
    for rank, entry in enumerate(row.top or [], start=1):
        if entry["class"] == label:
            return _Score(entry["probability"], rank, predicted, confidence)
    rank = len(row.top or []) + 1
    return _Score(float("nan"), rank, predicted, confidence)  # not among the stored classes: unknown, not 0
