"""The calibration sample of a job, and the errors of its checks that follow from the reviews of it.

The sample of a method is its rendered edits, accepted and rejected, in the order of their ids, up to the first one
without a review. Ids are digests of job, source image, method and ordinal, so this order is random and independent of
scores, verdicts and predictions. Reviews that extend the sample may come from any page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.analysis.calibration import (
    ROUND,
    JudgedSample,
    class_error_rates,
    error_rates,
    fit_held_out,
    fit_validity,
    half_width,
    more_needed,
    separation,
)
from gateway.analysis.thresholds import VALID, Booleans, ScoredImages, margins
from gateway.analysis.validity_model import SignalSample, auroc_interval
from gateway.database.columns import StoredChange
from gateway.database.tables import Answer, Counterfactual, Job, JobService, SourceImage
from gateway.feedback.answers import Turn, is_answer
from gateway.feedback.reviews import Reviews, load_reviews
from gateway.jobs import jobs
from gateway.jobs.plans import checks_off
from gateway.methods import METHODS, JobMethod
from gateway.methods.checks import CHECKS, LABEL_BY_RANK, label_lost, with_label_rank
from gateway.methods.inverted import SweepParameters
from gateway.methods.validity import SIGNALS
from shared.schemas.calibration import FittedValidity, JobCalibration, MethodCalibration
from shared.schemas.effects import Estimate
from shared.schemas.validity import JUDGED, VALIDITY, EditKind, signal_value
from shared.seeds import derive_seed

# Checks whose score alone decides; an edit that another check refused stays refused at any threshold.
_BY_SCORE = tuple(name for name, check in CHECKS.items() if check.fitted)


@dataclass(frozen=True)
class SampleTurn(Turn[str]):
    """The next edit of the calibration sample. The numbers are of its method's sample, and of all reviewers.

    `rendered` and `half_width` are as in `MethodCalibration`.
    """

    rendered: int
    half_width: float


class _Edit(NamedTuple):
    """A reviewed edit: what the arrays of a sample need."""

    id: str
    source: str
    group: str | None
    accepted: bool
    check: str
    scores: dict[str, float]
    changes: list[StoredChange]
    label: str | None

    @property
    def kind(self) -> EditKind:
        """The factors, values and class of the edit."""
        factors = tuple(change["factor"] for change in self.changes)
        values = tuple(change["to_value"] for change in self.changes)
        return EditKind(factors, values, () if self.label is None else (self.label,))


class CheckedEdit(NamedTuple):
    """The scores of an edit's image, and the verdict: `check` refused it ("" if none)."""

    scores: Mapping[str, float]
    accepted: bool
    check: str


class _CalibrationSample(NamedTuple):
    """How far the sample of one method is; `names` are the answered edits with their verdicts (None: undecided)."""

    rendered: int
    verdicts: dict[str, bool | None]

    @property
    def valid(self) -> int:
        return sum(verdict is True for verdict in self.verdicts.values())

    @property
    def invalid(self) -> int:
        return sum(verdict is False for verdict in self.verdicts.values())

    @property
    def more(self) -> int:
        """Number of further reviews to ask for, limited by the edits without one."""
        return min(more_needed(self.valid, self.invalid) or ROUND, self.rendered - len(self.verdicts))

    @property
    def half_width(self) -> float:
        """Of both errors after `more` reviews."""
        return half_width(self.valid, self.invalid, self.more)


def calibration_of(session: Session, owner: str, job_id: str) -> JobCalibration:
    """The calibration of a job's checks from its reviews so far. Raises NotFound."""
    job = jobs.find(session, owner, job_id)
    reviews = load_reviews(session, job_id)
    methods = _checked_methods(job)
    rendered = _count_rendered(session, job_id)
    return JobCalibration(
        job=job_id,
        kind=job.kind,
        scorer=_scorer(session, job_id),
        profile=job.profile,
        methods=[
            _method_calibration(session, job, method, _sample(reviews, method.name, rendered)) for method in methods
        ],
    )


def next_turn(session: Session, job: Job, reviewer: str, method: str | None = None) -> SampleTurn:
    """The next edit that nobody has reviewed, of the method with the fewest answers (or of `method`).

    It depends on no verdict, score or prediction.
    """
    reviewed_by = select(Answer.item).where(is_answer(job.id, "review"), Answer.author == reviewer)
    before = session.scalar(reviewed_by.order_by(Answer.answered_at.desc()).limit(1))
    reviews, rendered = load_reviews(session, job.id), _count_rendered(session, job.id)
    names = [name for name in (checked.name for checked in _checked_methods(job)) if method in (None, name)]
    samples = {name: _sample(reviews, name, rendered) for name in names}
    open_names = [name for name in names if _first_open(reviews, name) is not None]
    if not open_names:
        answered = sum(len(sample.verdicts) for sample in samples.values())
        return SampleTurn(None, before, answered, answered, answered, 0.0)
    name = min(open_names, key=lambda name: len(samples[name].verdicts))
    sample = samples[name]
    answered = len(sample.verdicts)
    following = _first_open(reviews, name)
    return SampleTurn(following, before, answered, answered + sample.more, sample.rendered, sample.half_width)


def _checked_methods(job: Job) -> list[JobMethod]:
    return [method for method in job.methods if METHODS[method.name].checked]


def _count_rendered(session: Session, job_id: str) -> dict[str, int]:
    """The number of rendered edits of each method."""
    c = Counterfactual
    edits = select(c.method, func.count()).where(c.job_id == job_id, c.arm == "edit", c.image_digest.is_not(None))
    return {row[0]: row[1] for row in session.execute(edits.group_by(c.method))}


def _first_open(reviews: Reviews, method: str) -> str | None:
    """The first rendered edit of a method without a review, in the order of the sample."""
    ends = [reviews.first_open.get((method, accepted)) for accepted in (True, False)]
    return min((end for end in ends if end is not None), default=None)


def _sample(reviews: Reviews, method: str, rendered: Mapping[str, int]) -> _CalibrationSample:
    end = _first_open(reviews, method)
    verdicts = {
        name: review.valid
        for name, review in sorted(reviews.by_edit.items())
        if review.method == method and (end is None or name < end)
    }
    return _CalibrationSample(rendered.get(method, 0), verdicts)


def _scorer(session: Session, job_id: str) -> str:
    """The revision of the scorer's weights; empty if the job used several or recorded none."""
    infos = session.scalars(select(JobService.info).where(JobService.job_id == job_id))
    revisions = {weights.revision for info in infos for weights in info.weights if weights.role == "scorer"}
    return revisions.pop() if len(revisions) == 1 else ""


def _method_calibration(session: Session, job: Job, method: JobMethod, sample: _CalibrationSample) -> MethodCalibration:
    decided = {name: verdict for name, verdict in sample.verdicts.items() if verdict is not None}
    edits = _edits(session, job.id, decided)
    judged = _judged_sample(edits, decided)
    images = scored_images([CheckedEdit(edit.scores, edit.accepted, edit.check) for edit in edits], judged, method)
    fitted = fit_held_out(judged, images, _half(job, edits))
    thresholds = {check: dict(limits) for check, limits in method.thresholds.items()}
    return MethodCalibration(
        method=method.name,
        rendered=sample.rendered,
        answered=len(sample.verdicts),
        undecided=len(sample.verdicts) - len(decided),
        more=sample.more,
        half_width=sample.half_width,
        errors=error_rates(judged),
        classes=class_error_rates(judged),
        thresholds=thresholds,
        checks_off=checks_off([method], job.kind).get(method.name, []),
        separation=separation(images),
        judge=_judge_areas(job, edits, judged),
        fitted=fitted and fitted.model_copy(update={"thresholds": {**thresholds, **fitted.thresholds}}),
        validity=_validity(job, method, edits, judged, thresholds),
        sweeps=isinstance(method.parameters, SweepParameters),
    )


def _edits(session: Session, job_id: str, names: Mapping[str, bool]) -> list[_Edit]:
    """The named edits, in the order of their ids. Reads all reviewed edits of the job; people review few."""
    c, s = Counterfactual, SourceImage
    columns = select(c.id, c.source_image_id, s.group_name, c.accepted, c.check, c.scores, c.changes, s.ground_truth)
    reviewed = select(Answer.item).where(is_answer(job_id, "review"))
    rows = session.execute(columns.join(s, c.source_image_id == s.id).where(c.id.in_(reviewed)).order_by(c.id))
    return [_Edit(*row) for row in rows if row.id in names]


def _judged_sample(edits: Sequence[_Edit], verdicts: Mapping[str, bool]) -> JudgedSample:
    groups = [edit.group or edit.source for edit in edits]
    return JudgedSample(
        valid=np.array([verdicts[edit.id] for edit in edits], np.bool_),
        accepted=np.array([edit.accepted for edit in edits], np.bool_),
        group=np.unique(np.array(groups, np.str_), return_inverse=True)[1].astype(np.int64),
        factors=[tuple(dict.fromkeys(change["factor"] for change in edit.changes)) for edit in edits],
        labels=[edit.label for edit in edits],
    )


def _judge_areas(job: Job, edits: Sequence[_Edit], judged: JudgedSample) -> dict[str, Estimate]:
    """The AUROC of the judge's answers to each question, of the edits for which it has one: its error on this job."""
    areas = {}
    for name in JUDGED:
        answered = np.array([name in edit.scores for edit in edits], np.bool_)
        valid, group = judged.valid[answered], judged.group[answered]
        if valid.any() and not valid.all():
            answers = np.array([edit.scores[name] for edit in edits if name in edit.scores])
            areas[name] = auroc_interval(answers, valid, group, derive_seed("judge", job.id, name))
    return areas


def scored_images(edits: Sequence[CheckedEdit], judged: JudgedSample, method: JobMethod) -> ScoredImages:
    """The judged edits as arrays for the fit.

    An edit is not passable if the label check ranks another class first, if a check refused it that is not by score,
    or if it fails the job's threshold of a check that did not score every edit and so cannot be fitted.
    """
    checks = [check for check in (*METHODS[method.name].checks, VALIDITY) if check in _BY_SCORE]
    scored = tuple(check for check in checks if any(check in edit.scores for edit in edits))
    scores = [[edit.scores.get(check, np.nan) for check in scored] for edit in edits]
    passable = [
        edit.scores.get("label_margin", 1.0) > 0 and (edit.accepted or edit.check in _BY_SCORE) for edit in edits
    ]
    images = ScoredImages(
        checks=scored,
        scores=np.array(scores, np.float64).reshape(len(edits), len(scored)),
        kind=np.where(judged.valid, VALID, 1),
        passable=np.array(passable, np.bool_),
        factors=judged.factors,
    )
    limits = {check: method.thresholds[check] for check in scored if check in method.thresholds}
    for place in images.complete:
        limits.pop(scored[place], None)
    return replace(images, passable=images.passable & (margins(images, limits, dict.fromkeys(limits, 1.0)) >= 0))


def label_kept(scores: Mapping[str, float]) -> bool:
    """Whether an image passes the label check where its rank alone decides."""
    return "label_margin" not in scores or not label_lost(scores, LABEL_BY_RANK)


def _validity(
    job: Job,
    method: JobMethod,
    edits: Sequence[_Edit],
    judged: JudgedSample,
    thresholds: Mapping[str, Mapping[str, float]],
) -> FittedValidity | None:
    """The validity model. Its check replaces the others but the rank of the label.

    Where a method sweeps, the others chose the images and stay.
    """
    sweeps = isinstance(method.parameters, SweepParameters)
    accepted = np.array([edit.accepted or edit.check == VALIDITY for edit in edits], np.bool_)
    by_score = np.array(
        [label_kept(edit.scores) and (edit.accepted or edit.check in _BY_SCORE) for edit in edits], np.bool_
    )
    signals = signal_sample([edit.scores for edit in edits], [edit.kind for edit in edits], judged)
    seed = derive_seed("validity", job.id, method.name)
    fitted = fit_validity(judged, signals, accepted if sweeps else by_score, seed)
    if fitted is None:
        return None
    return fitted.model_copy(
        update={"thresholds": with_label_rank({**(thresholds if sweeps else {}), **fitted.thresholds})}
    )


def signal_sample(
    scores: Sequence[Mapping[str, float]], edits: Sequence[EditKind], judged: JudgedSample
) -> SignalSample:
    """The signals of judged edits: the scores that at least one of them has."""
    names = tuple(name for name in SIGNALS if any(name in signals for signals in scores))
    rows = [[signal_value(name, signals[name]) if name in signals else np.nan for name in names] for signals in scores]
    values = np.array(rows, np.float64).reshape(len(scores), len(names))
    return SignalSample(names, values, edits, judged.valid, judged.group)


def _half(job: Job, edits: Sequence[_Edit]) -> Booleans:
    """A random half of the groups of source images, fixed by the job."""
    return np.array([derive_seed("half", job.id, edit.group or edit.source) % 2 == 0 for edit in edits], np.bool_)
