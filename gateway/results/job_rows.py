"""All rows of a job as typed arrays for the analysis, about 130 bytes per counterfactual and model under test.

Why source images of a job failed, why its edits were refused, and for how many a question was asked again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.components import RenderingCost
from gateway.analysis.funnel import EditOutcome
from gateway.database.columns import StoredSpec
from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.feedback.reviews import Reviews, load_reviews
from gateway.jobs.sensitivity import GroupedTruth
from gateway.kinds import KINDS
from gateway.kinds.originals import HeldLabels
from gateway.kinds.rows import CounterfactualRow, usage_in
from gateway.kinds.task_kind import ScoresAlone
from gateway.methods import JobMethod
from gateway.methods.checks import LABEL, LABEL_BY_RANK, PRESENCE, REGISTRATION
from gateway.methods.people import CHECK
from gateway.results.judge import counting_in_job, judge_of_job
from gateway.results.pairing import Triple, triples
from gateway.results.reviewed_edits import ReviewedJob
from gateway.results.rows import ModelRows, ScoreColumns
from gateway.results.steps import steps_of
from gateway.results.stream import SourceRow, SourceRows, number_sources, relation_of, stream_sources
from shared.problems import BEGINS
from shared.profiles.judge_audit import JudgeAudit
from shared.schemas.evaluation import TokenUsage
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.results import CheckedObjects, FailureReason, JobJudge, PeopleEdits, Relation, StepFigures
from shared.schemas.service import ServiceInfo

REASONS_SHOWN = 5


def failure_reasons(session: Session, job_id: str) -> list[FailureReason]:
    """The most frequent reasons, the most frequent one first. Reasons that differ in what they quote are one."""
    count = func.count()
    rows = session.execute(
        select(SourceImage.failure, count)
        .where(SourceImage.job_id == job_id, SourceImage.state == "failed")
        .group_by(SourceImage.failure)
        .order_by(count.desc(), SourceImage.failure)
    )
    counts, quoting = Counter[str](), dict[str, str]()
    for reason, number in rows:
        unquoted = reason.split(BEGINS)[0]
        counts[unquoted] += number
        quoting.setdefault(unquoted, reason)
    return [FailureReason(reason=quoting[name], count=number) for name, number in counts.most_common(REASONS_SHOWN)]


def asked_again(session: Session, job_id: str, method: str) -> int:
    """The edits of a method for which a question to the language model was repeated."""
    c = Counterfactual
    repeats = c.lineage["asked_again"].as_integer()
    query = select(func.count()).where(c.job_id == job_id, c.method == method, c.arm == "edit", repeats > 0)
    return session.scalar(query) or 0


def label_unchecked(session: Session, job: Job, method: JobMethod) -> int:
    """The rendered edits of a method whose label can have any rank, because the scorer ranks it last in the source.

    0 if a threshold of its probability checks it too, or nothing does.
    """
    if max(method.thresholds.get(LABEL, {"default": -1.0}).values()) != LABEL_BY_RANK:
        return 0
    c, limit = Counterfactual, Counterfactual.scores["label_rank_limit"].as_float()
    query = (
        select(SourceImage.ground_truth, limit, func.count())
        .join(SourceImage, c.source_image_id == SourceImage.id)
        .where(c.job_id == job.id, c.method == method.name, c.arm == "edit", limit >= len(job.classes))
        .group_by(SourceImage.ground_truth, limit)
    )
    return sum(count for truth, last, count in session.execute(query) if last >= len({*job.classes, truth}))


def moved_back(session: Session, job_id: str, method: str) -> int:
    """The rendered edits of a method whose editor zoomed or shifted the picture."""
    c = Counterfactual
    moved = c.scores[REGISTRATION].as_float().is_not(None)
    query = select(func.count()).where(c.job_id == job_id, c.method == method, c.arm == "edit", moved)
    return session.scalar(query) or 0


def checked_objects(session: Session, job_id: str, method: str) -> CheckedObjects | None:
    """The objects of the boxes in the rendered images of a method, null and sham arms included; None without any."""
    c = Counterfactual
    numbers = [func.sum(c.scores[f"objects_{name}"].as_float()) for name in ("checked", "lost", "unchecked")]
    query = select(*numbers).where(c.job_id == job_id, c.method == method)
    checked, lost, unchecked = (int(number or 0) for number in session.execute(query).one())
    return CheckedObjects(checked=checked, lost=lost, unchecked=unchecked) if checked or unchecked else None


def people_edits(session: Session, job_id: str, reviews: Reviews) -> list[PeopleEdits]:
    """The edits of protected characteristics of people, by characteristic; an edit of two counts under both."""
    c = Counterfactual
    people = c.lineage["people"].as_string()
    query = select(c.id, c.source_image_id, c.accepted, c.check, people).where(
        c.job_id == job_id, c.arm == "edit", people.is_not(None)
    )
    edits = session.execute(query.order_by(c.id)).all()
    verdicts = {name: review.valid for name, review in reviews.by_edit.items() if review.valid is not None}
    groups = sorted({group for edit in edits for group in edit[-1].split(", ")})
    return [_people_edits(group, [e for e in edits if group in e[-1].split(", ")], verdicts) for group in groups]


def _people_edits(group: str, edits: Sequence[Row[Any]], verdicts: Mapping[str, bool]) -> PeopleEdits:
    numbers = {source: number for number, source in enumerate(dict.fromkeys(edit.source_image_id for edit in edits))}
    sources = np.array([numbers[edit.source_image_id] for edit in edits])
    accepted = np.array([edit.accepted for edit in edits])
    reviewed = np.array([edit.accepted and edit.id in verdicts for edit in edits])
    valid = np.array([verdicts.get(edit.id, False) for edit in edits])
    return PeopleEdits(
        characteristic=group,
        refused=sum(edit.check == CHECK for edit in edits),
        accepted=clustered_rate(accepted, sources),
        valid=clustered_rate(valid[reviewed], sources[reviewed]) if reviewed.any() else None,
    )


def refusal_reason(session: Session, job_id: str, method: str) -> str:
    """The most frequent reason for which the edits of a method were refused; empty without any."""
    c = Counterfactual
    query = (
        select(c.reason)
        .where(c.job_id == job_id, c.method == method, c.arm == "edit", c.accepted.is_(False), c.reason != "")
        .group_by(c.reason)
        .order_by(func.count().desc(), c.reason)
        .limit(1)
    )
    return session.scalar(query) or ""


@dataclass(slots=True)
class MethodRows:
    """The outcome of each edit of a method, the network evaluations of all its renderings, and those of its arms.

    `refusal`: if no edit was accepted, the most frequent reason. `asked_again`: edits with a repeated question.
    `label_unchecked`: rendered edits whose label can have any rank. `moved_back`: those that their editor had moved.
    `objects`: those of its boxes.
    """

    edits: list[EditOutcome] = field(default_factory=list)
    evaluations: int = 0
    arms: int = 0
    arm_evaluations: int = 0
    refusal: str = ""
    asked_again: int = 0
    label_unchecked: int = 0
    moved_back: int = 0
    objects: CheckedObjects | None = None

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


@dataclass(frozen=True, slots=True)
class JobRows:
    """The input of a job's figures, in a fixed order.

    `truths` has an entry for each finished source image: its label, or the classes of its mask (() without ground
    truth), and its group. `failed` and `cancelled` count the other source images. `failure_reasons`: why source images
    failed. `reviewed`: the reviews of its edits. `checks`: how each model under test stands on the originals. `people`:
    edits of protected characteristics of people. `steps`: those of each method with reviews.
    """

    job: Job
    relation: Relation
    truths: list[GroupedTruth]
    failed: int
    cancelled: int
    failure_reasons: list[FailureReason]
    methods: dict[str, MethodRows]
    models: dict[tuple[str, str], ModelRows]  # by model under test and method
    reviewed: ReviewedJob
    checks: dict[str, OriginalsCheck | None]
    usage: dict[str, TokenUsage]
    people: list[PeopleEdits]
    steps: dict[str, list[StepFigures]]
    others: dict[tuple[str, str], ModelRows] = field(default_factory=dict)  # by the other score of the kind
    judge: JobJudge | None = None


def load_rows(
    session: Session, job_id: str, audit: JudgeAudit | None = None, services: Sequence[ServiceInfo] = ()
) -> JobRows:
    """Stream all rows of a job and keep the arrays that its figures need.

    `audit`: the profile's audit of a judge; if the `services` of the job asked that judge, its answers count.
    """
    job = session.get_one(Job, job_id)
    kind, spec, relation = KINDS[job.kind], job.stored_spec, relation_of(session, job_id)
    kinds = {model: kind.of_job(spec, model) for model in job.models}
    methods = {method.name: MethodRows() for method in job.methods}
    details = {(model, method): kinds[model].detail(job.classes) for model in job.models for method in methods}
    columns = {pair: ScoreColumns(detail) for pair, detail in details.items()}
    other_columns = {pair: ScoreColumns(ScoresAlone()) for pair in details if kind.other_score is not None}
    reviews = load_reviews(session, job_id)
    counting, audit = counting_in_job(audit, services)
    reviewed = ReviewedJob(reviews, methods, job.models, counting)
    truths: list[GroupedTruth] = []
    judges = {model: kinds[model].originals(job.classes, relation, job.seed) for model in job.models}
    held = {model: HeldLabels() for model in job.models}
    usage = dict.fromkeys(job.models, TokenUsage())
    unfinished = Counter[str]()
    for numbers, rows in number_sources(stream_sources(session, job_id)):
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
            usage[model] = sum(filter(None, (usage_in(row.detail) for row in predictions.values())), usage[model])
            original = predictions.get(rows.source.id)
            judges[model].add(numbers.group, original)
            held[model].add({} if original is None else original.scores)
            for method in methods:
                columns[model, method].add(numbers, rows, edits[method], predictions)
            if kind.other_score is not None:
                by_other_score = {image: kind.other_score(row) for image, row in predictions.items()}
                for method in methods:
                    other_columns[model, method].add(numbers, rows, edits[method], by_other_score)
    for method, method_rows in methods.items():
        method_rows.asked_again = asked_again(session, job_id, method)
        chosen = next(chosen for chosen in job.methods if chosen.name == method)
        method_rows.label_unchecked = label_unchecked(session, job, chosen)
        method_rows.moved_back = moved_back(session, job_id, method) if kind.localised else 0
        method_rows.objects = checked_objects(session, job_id, method) if PRESENCE in kind.checks else None
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
        reviewed,
        _with_hints({model: held[model].named_in(judge.check()) for model, judge in judges.items()}, job.stored_spec),
        usage,
        people_edits(session, job_id, reviews),
        steps_of(session, job, reviews) if reviews.by_edit else {},
        {pair: pair_columns.rows() for pair, pair_columns in other_columns.items()},
        judge_of_job(session, job_id, audit),
    )


def _with_hints(checks: Mapping[str, OriginalsCheck | None], spec: StoredSpec) -> dict[str, OriginalsCheck | None]:
    """The checks, or the stored refusals in their place, with the hints of the worker."""
    hinted = {**checks, **spec.refused}
    for model, hint in spec.channel_hints.items():
        if (check := hinted.get(model)) is not None:
            hinted[model] = check.model_copy(update={"sentence": f"{check.sentence} {hint}".strip()})
    return hinted


def _truths(source: SourceRow) -> tuple[str, ...]:
    """The classes of the ground truth. Interned, because a job has few distinct classes."""
    return tuple(map(sys.intern, source.mask_classes or ([source.ground_truth] if source.ground_truth else [])))


def _by_method(rows: SourceRows, methods: Iterable[str]) -> dict[str, list[Triple[CounterfactualRow]]]:
    edits: dict[str, list[Triple[CounterfactualRow]]] = {method: [] for method in methods}
    for triple in triples(rows.counterfactuals):
        edits[triple.edit.method].append(triple)
    return edits
