"""A number that a paper prints, where it prints it, and how it is read from a finished kit.

Readers return text: the measured figure with its n or interval, or what is missing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from research.paper_tables.printing import NOTHING, grid, rate
from shared.schemas.effects import Estimate, MeanOverlap, Rate
from shared.schemas.metrics import Accuracy, PaperMetrics, SegmentationScores
from shared.schemas.repairs import ArmFigures, RepairView, SetName
from shared.schemas.results import JobResults, ModelResults
from shared.schemas.studies import StudyRequest, StudyResults

ORIGINALS = "originals"  # in place of a method: all originals
NO_STUDY = "no study has asked this"
NO_STUDY_BY_FACTOR = "no study with --per-factor has asked this"
REVIEW_FIRST = "review accepted images first"
NO_REPAIR = "retrain with --repair"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a kit has measured. `distances`: KID by method, as text. `proposed`: edits by method and factor.

    `studies`: the newest first.
    """

    results: JobResults
    distances: Mapping[str, str] = field(default_factory=dict)
    proposed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    studies: Sequence[tuple[StudyRequest, StudyResults]] = ()
    repairs: Sequence[RepairView] = ()
    hours: float | None = None


Reader = Callable[[Measured], str]


@dataclass(frozen=True, slots=True)
class Printed:
    """`number` as the paper prints it at `where` (a table, figure or section), of `what`."""

    where: str
    what: str
    number: str
    read: Reader


def printed_table(numbers: Iterable[Printed], measured: Measured) -> str:
    """Every printed number beside the measured one."""
    body = [[number.where, number.what, number.number, number.read(measured)] for number in numbers]
    return "### The paper's numbers beside these\n\n" + grid(["where", "what", "the paper", "here"], body)


def cannot(why: str) -> Reader:
    """For a number that no kit measures."""
    return lambda measured: f"{NOTHING} ({why})"


# --- Of models under test.


def accuracy(model: str, method: str, k: int) -> Reader:
    """acc@k of a model on a method's accepted counterfactuals, or on all originals."""
    return _of_level(
        model, method, k, lambda level: level.all_originals if method == ORIGINALS else level.counterfactuals
    )


def accuracy_change(model: str, method: str, k: int) -> Reader:
    """acc@k less that of all originals, in points (LANCE, equation 3)."""

    def read(measured: Measured) -> str:
        level = _level(measured, model, method, k)
        return NOTHING if level is None else points(level.delta_all)

    return read


def error(model: str, method: str) -> Reader:
    """The share that a model gets wrong, of a method's accepted counterfactuals or of all originals."""

    def read(measured: Measured) -> str:
        share = _error(measured, model, method)
        return NOTHING if share is None else rate(share)

    return read


def mean_error(models: Sequence[str], method: str) -> Reader:
    """The mean of the models' errors."""

    def read(measured: Measured) -> str:
        mean = _mean_error(measured, models, method)
        return NOTHING if mean is None else percent(mean, 1)

    return read


def valid_error(models: Sequence[str], method: str, judged: str) -> Reader:
    """The mean error on counterfactuals, times the share of the model `judged`'s failures that people find valid."""

    def read(measured: Measured) -> str:
        mean, valid = _mean_error(measured, models, method), _valid(measured, method, judged)
        return NOTHING if mean is None or valid is None else percent(mean * valid.value, 1)

    return read


def all_or_none(method: str, *, fail: bool) -> Reader:
    """The share of a model's source images whose counterfactuals all (`fail`) or never fail, of every model."""

    def cell(entry: ModelResults) -> str:
        shares = entry.metrics.all_or_none if entry.metrics is not None else None
        return NOTHING if shares is None else f"{rate(shares.all_fail if fail else shares.none_fail)}, k = {shares.k}"

    return _of_models(method, cell)


def class_found(method: str, name: str, *, originals: bool) -> Reader:
    """The share of a class's pixels that a segmenter finds, of every model."""

    def cell(entry: ModelResults) -> str:
        found = _class_accuracy(entry, name, originals=originals)
        return NOTHING if found is None else percent(found, 1)

    return _of_models(method, cell)


def class_change(method: str, name: str) -> Reader:
    """The share of a class's pixels that a segmenter finds on counterfactuals, less that on all originals."""

    def cell(entry: ModelResults) -> str:
        before, after = (_class_accuracy(entry, name, originals=originals) for originals in (True, False))
        return NOTHING if before is None or after is None else points(after - before)

    return _of_models(method, cell)


# --- Of retraining.


def retrained_accuracy(model: str, judged_on: SetName) -> Reader:
    """Accuracy of a retrained model less that before, in points."""

    def cell(view: RepairView) -> str:
        before, after = (_arm_accuracy(view, judged_on, arm) for arm in ("before", "repaired"))
        return NOTHING if before is None or after is None else f"{points(after - before)} points"

    return lambda measured: (
        _joined((view.request.model, cell(view)) for view in measured.repairs if view.request.model == model)
        or NO_REPAIR
    )


def retrained_overlap(judged_on: SetName) -> Reader:
    """mIoU before and after retraining, of every model."""
    return _retrained(judged_on, lambda scores, classes: scores.mean_iou)


def retrained_class(judged_on: SetName, name: str) -> Reader:
    """The share of a class's pixels that is found before and after retraining, of every model."""
    return _retrained(
        judged_on, lambda scores, classes: scores.class_accuracy[classes.index(name)] if name in classes else None
    )


# --- Of images, captions and people.


def distance(method: str) -> Reader:
    """FID in the scorer's space, from 2,048 images on; else KID on the kit's features, or that of the report."""

    def read(measured: Measured) -> str:
        realism = next((entry for entry in measured.results.realism if entry.method == method), None)
        if realism is not None and realism.fid is not None:
            return f"FID in the scorer's space: {realism.fid:.1f}"
        if method in measured.distances:
            return f"KID × 1000: {measured.distances[method]}"
        if realism is None or realism.kid is None:
            return NOTHING
        value, low, high = (1000 * figure for figure in (realism.kid.value, realism.kid.low, realism.kid.high))
        return f"KID × 1000: {value:.1f} ({low:.1f} to {high:.1f})"

    return read


def perplexity(method: str, *, edited: bool) -> Reader:
    """Of a method's captions, or of its edited captions, per token, under the profile's language model."""

    def read(measured: Measured) -> str:
        realism = next((entry for entry in measured.results.realism if entry.method == method), None)
        value = None if realism is None else realism.perplexity_edited if edited else realism.perplexity
        return NOTHING if value is None else f"{value:.1f}"

    return read


def proposed(method: str, factor: str) -> Reader:
    """How many edits of a factor a method proposed."""
    return lambda measured: f"{measured.proposed.get((method, factor), 0):,}" if measured.proposed else NOTHING


def accepted(method: str) -> Reader:
    """How many counterfactuals of a method the checks accepted, of how many source images and proposals."""

    def read(measured: Measured) -> str:
        funnel = next((funnel for funnel in measured.results.funnels if funnel.method == method), None)
        if funnel is None:
            return NOTHING
        count, results = funnel.accepted.count, measured.results
        return f"{count:,} of {results.sources:,} source images, {funnel.proposed:,} proposals"

    return read


def hours(method: str) -> Reader:
    """Hours of the whole job, beside its accepted counterfactuals."""

    def read(measured: Measured) -> str:
        return NOTHING if measured.hours is None else f"{measured.hours:.1f} for {accepted(method)(measured)}"

    return read


def answered(
    question: str, method: str, factor: str = "", element: str | None = None, misclassified_by: str | None = None
) -> Reader:
    """What people answered to a question of a study: a mean, or the share of items with a consensus for yes.

    `factor`: of the edits of one factor, in a study by factors. `element`: in a study of that class alone.
    `misclassified_by`: in a study of the edits that this model gets wrong; "" if there is none.
    """
    where = (question, method, factor)
    sample = "accepted" if misclassified_by is None else "misclassified"

    def read(measured: Measured) -> str:
        figures = [
            figures
            for request, study in measured.studies
            for figures in study.figures
            if request.element == element
            and (request.sample, request.model) == (sample, misclassified_by)
            and (figures.question, figures.method, figures.factor) == where
            and figures.items
        ]
        if not figures and misclassified_by is not None:
            return ""
        if not figures:
            return f"no study with --element {element}" if element else NO_STUDY_BY_FACTOR if factor else NO_STUDY
        newest = figures[0]
        if newest.mean is not None:
            return f"{estimate(newest.mean, 1)}, n = {newest.items}"
        text = NOTHING if newest.decided is None else rate(newest.decided)
        return f"{text}; {newest.undecided} of {newest.items} without consensus"

    return read


def usable_answers(measured: Measured) -> str:
    """How many ratings, control items included, are by raters who count, in all studies of the job."""
    raters = [rater for _, study in measured.studies for rater in study.raters]
    answers = sum(rater.answered for rater in raters)
    usable = sum(rater.answered for rater in raters if not rater.excluded)
    return f"{usable:,} of {answers:,}" if answers else NO_STUDY


def valid_of_flipped(method: str, model: str) -> Reader:
    """The share of a model's failures that people find valid, by a study of them, or else by reviews."""
    by_study = answered("label_kept", method, misclassified_by=model)

    def read(measured: Measured) -> str:
        if text := by_study(measured):
            return text
        valid = _valid(measured, method, model)
        return REVIEW_FIRST if valid is None else f"{percent(valid.value, 1)} by reviews"

    return read


def failed(method: str) -> Reader:
    """How many of the randomly reviewed accepted images people find to be failures (LANCE, figure 12)."""

    def read(measured: Measured) -> str:
        entry = next((entry for entry in measured.results.reviews if entry.method == method), None)
        if entry is None or not entry.by_lot:
            return REVIEW_FIRST
        return f"{sum(failure.share.count for failure in entry.failures)} of {entry.by_lot:,} reviewed"

    return read


# --- Text of figures.


def percent(value: float | None, digits: int = 2) -> str:
    """A share: "85.32 %"."""
    return NOTHING if value is None else f"{100 * value:.{digits}f} %"


def points(difference: float | None) -> str:
    """A difference of shares in points: "-5.8"."""
    return NOTHING if difference is None else f"{100 * difference:+.1f}"


def difference(share: Rate, other: Rate) -> float | None:
    """A share less another one; None if either is of nothing."""
    return None if share.value is None or other.value is None else share.value - other.value


def estimate(value: Estimate, digits: int) -> str:
    """An estimate with its interval: "4.2 (4.0–4.4)"."""
    return f"{value.value:.{digits}f} ({value.low:.{digits}f}–{value.high:.{digits}f})"


def wrong(share: Rate) -> Rate:
    """The share of wrong ones, from that of right ones."""
    if share.value is None:
        return share
    turned = {"count": share.n - share.count, "value": 1 - share.value, "low": 1 - share.high, "high": 1 - share.low}
    return share.model_copy(update=turned)


def at(metrics: PaperMetrics | None, k: int) -> Accuracy | None:
    """The accuracy at k, if it was measured."""
    return next((level for level in metrics.accuracy if level.k == k), None) if metrics is not None else None


# --- Where the figures are.


def _of_level(model: str, method: str, k: int, share_of: Callable[[Accuracy], Rate | None]) -> Reader:
    def read(measured: Measured) -> str:
        level = _level(measured, model, method, k)
        share = None if level is None else share_of(level)
        return NOTHING if share is None else rate(share)

    return read


def _level(measured: Measured, model: str, method: str, k: int) -> Accuracy | None:
    entries = measured.results.results
    entry = next((e for e in entries if e.model == model and method in (ORIGINALS, e.method)), None)
    return None if entry is None else at(entry.metrics, k)


def _error(measured: Measured, model: str, method: str) -> Rate | None:
    level = _level(measured, model, method, 1)
    if level is None:
        return None
    share = level.all_originals if method == ORIGINALS else level.counterfactuals
    return None if share is None else wrong(share)


def _mean_error(measured: Measured, models: Sequence[str], method: str) -> float | None:
    shares = [_error(measured, model, method) for model in models]
    values = [share.value for share in shares if share is not None and share.value is not None]
    return sum(values) / len(values) if len(values) == len(models) else None


def _valid(measured: Measured, method: str, model: str) -> Estimate | None:
    reviews = (entry for entry in measured.results.reviews if entry.method == method)
    return next((share.valid for entry in reviews for share in entry.flipped if share.model == model), None)


def _class_accuracy(entry: ModelResults, name: str, *, originals: bool) -> float | None:
    figures = entry.segmentation
    scores = None if figures is None else figures.all_originals if originals else figures.counterfactuals
    if figures is None or scores is None or name not in figures.classes:
        return None
    return scores.class_accuracy[figures.classes.index(name)]


def _of_models(method: str, cell: Callable[[ModelResults], str]) -> Reader:
    def read(measured: Measured) -> str:
        entries = [entry for entry in measured.results.results if entry.method == method]
        return _joined((entry.model, cell(entry)) for entry in entries) or NOTHING

    return read


def _arm_accuracy(view: RepairView, judged_on: SetName, arm: str) -> float | None:
    figures = _arm(view, judged_on, arm)
    level: Rate | MeanOverlap | None = None if figures is None else figures.accuracy
    return None if level is None else level.value


def _retrained(judged_on: SetName, of: Callable[[SegmentationScores, list[str]], float | None]) -> Reader:
    def cell(view: RepairView) -> str:
        arms = (_arm(view, judged_on, arm) for arm in ("before", "repaired"))
        scores = [figures.segmentation if figures is not None else None for figures in arms]
        classes = view.result.classes if view.result is not None else []
        return " → ".join(percent(None if score is None else of(score, classes)) for score in scores)

    return lambda measured: _joined((view.request.model, cell(view)) for view in measured.repairs) or NO_REPAIR


def _arm(view: RepairView, judged_on: SetName, arm: str) -> ArmFigures | None:
    sets = view.result.sets if view.result is not None else []
    return next((f for figures in sets if figures.set == judged_on for f in figures.arms if f.arm == arm), None)


def _joined(cells: Iterable[tuple[str, str]]) -> str:
    """One model's cell, or "model: cell" of several."""
    named = list(cells)
    return named[0][1] if len(named) == 1 else "; ".join(f"{model}: {cell}" for model, cell in named)
