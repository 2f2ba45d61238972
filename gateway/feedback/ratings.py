"""The answers of a study: which raters count, what most of them say, and the reviews that follow from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from sqlalchemy import ColumnElement, and_, delete, func, literal, select
from sqlalchemy.orm import Session

from gateway.analysis.agreement import Scale, alpha, alpha_interval, consensus, mean_rating, score_controls
from gateway.analysis.certainty import clustered_rate
from gateway.analysis.effects import Integers
from gateway.database.table_base import utc_now
from gateway.database.tables import Answer, Counterfactual, SourceImage, Study, StudyItem, StudyRater
from gateway.feedback.answers import is_answer
from shared.schemas.results import FAILURE_MODES, FailureMode, FailureShare
from shared.schemas.reviews import ReviewRequest, ReviewVerdict
from shared.schemas.studies import (
    ATTENTION,
    CHOICES,
    Agreement,
    ItemKind,
    Question,
    QuestionFigures,
    QuestionKind,
    RaterFigures,
    StudyRequest,
    StudyResults,
)
from shared.seeds import derive_seed

Answers = Mapping[str, str]  # by the name of the question
EXPECTED: Mapping[ItemKind, str] = {"null": "yes", "broken": "no"}
CHECKS: tuple[ItemKind, ...] = (*EXPECTED, "attention")
_SCALES: Mapping[QuestionKind, Scale] = {"yes_no": "nominal", "scale": "ordinal", "failure": "nominal"}
_VERDICTS: Mapping[int, ReviewVerdict] = {1: "valid", -1: "invalid", 0: "unsure"}


@dataclass(frozen=True, slots=True)
class RatedItem:
    """An item of a study. Items with the same `group` are not independent."""

    id: str
    kind: ItemKind
    edit: str
    method: str
    group: str
    factor: str = ""


@dataclass(frozen=True, slots=True)
class RaterScore:
    """A rater's control items: `correct` of `controls` that count, and attention checks answered otherwise.

    `unchecked` raters have answered none of the study's control items; they are excluded until they answer one.
    """

    correct: int
    controls: int
    attention_missed: int
    unchecked: bool
    failed: bool

    @property
    def excluded(self) -> bool:
        """Whether the rater's answers do not count."""
        return self.unchecked or self.failed


@dataclass(frozen=True, slots=True)
class Ratings:
    """All items and answers of a study. `answers` are by rater, then by item, and include excluded raters'."""

    request: StudyRequest
    items: dict[str, RatedItem]
    answers: dict[str, dict[str, Answers]]
    scores: dict[str, RaterScore]
    dropped_controls: list[str]

    @property
    def edits(self) -> list[RatedItem]:
        """The sampled edits, in the order of their ids."""
        return [item for item in self.items.values() if item.kind == "edit"]

    @property
    def usable(self) -> dict[str, list[Answers]]:
        """The answers about each item by raters who count; items without any are absent."""
        usable: defaultdict[str, list[Answers]] = defaultdict(list)
        for rater, answers in self.answers.items():
            if not self.scores[rater].excluded:
                for item, rating in answers.items():
                    usable[item].append(rating)
        return usable

    @property
    def complete(self) -> dict[str, list[Answers]]:
        """The usable answers about edits that have as many as the study asks for."""
        usable = self.usable
        needed = self.request.raters_per_item
        return {item.id: usable[item.id] for item in self.edits if len(usable.get(item.id, ())) >= needed}


def load_ratings(session: Session, study: Study) -> Ratings:
    """All answers of a study, in memory: at most some 100,000."""
    i, c, s = StudyItem, Counterfactual, SourceImage
    rows = select(i.id, i.kind, c.id, c.method, s.group_name, s.id, c.factor).join(c, i.counterfactual_id == c.id)
    rows = rows.join(s, c.source_image_id == s.id).where(i.study_id == study.id).order_by(c.id, i.id)
    items = {
        row[0]: RatedItem(row[0], row[1], row[2], row[3], row[4] or row[5], row[6] or "")
        for row in session.execute(rows).all()
    }
    answers = load_answers(session, study)
    scores, dropped = score_raters(study.request, {item.id: item.kind for item in items.values()}, answers)
    return Ratings(study.request, items, answers, scores, dropped)


def load_scores(session: Session, study: Study) -> dict[str, RaterScore]:
    """The score of each rater, from the answers about control items and attention checks alone."""
    i = StudyItem
    kinds = {row.id: row.kind for row in session.execute(select(i.id, i.kind).where(i.study_id == study.id))}
    return score_raters(study.request, kinds, load_answers(session, study, CHECKS))[0]


def count_usable(
    session: Session, study: Study, scores: Mapping[str, RaterScore], question: Question | None
) -> dict[str, Counter[str]]:
    """How many raters who count answered each item, by their answer to a question ("" without one)."""
    a = Answer
    answer = literal("") if question is None else a.content[question.name].as_string()
    usable = [rater for rater, score in scores.items() if not score.excluded]
    counted = select(a.item, answer.label("answer"), func.count()).where(is_rating(study), a.author.in_(usable))
    counted = counted.group_by(a.item, "answer")
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item, choice, raters in session.execute(counted):
        counts[item][choice] = raters
    return counts


def is_rating(study: Study) -> ColumnElement[bool]:
    """Whether a row is a rating of an item of the study."""
    return and_(is_answer(study.job_id, "rating"), Answer.study_id == study.id)


def load_answers(
    session: Session, study: Study, kinds: Sequence[ItemKind] = get_args(ItemKind), rater: str | None = None
) -> dict[str, dict[str, Answers]]:
    """The answers about items of these kinds by rater, then by item: those of all raters by id, or of one."""
    i, a, r = StudyItem, Answer, StudyRater
    raters = select(r.id).where(r.study_id == study.id).order_by(r.id)
    ratings = select(a.author, a.item, a.content).join(i, a.item == i.id).where(is_rating(study), i.kind.in_(kinds))
    if rater is not None:
        raters, ratings = raters.where(r.id == rater), ratings.where(a.author == rater)
    answers: dict[str, dict[str, Answers]] = {name: {} for name in session.scalars(raters)}
    for name, item, content in session.execute(ratings):
        answers[name][item] = {question: str(choice) for question, choice in content.items()}
    return answers


def score_raters(
    request: StudyRequest, kinds: Mapping[str, ItemKind], answers: Mapping[str, Mapping[str, Answers]]
) -> tuple[dict[str, RaterScore], list[str]]:
    """The control items of each rater, and the ids of dropped control items. Only answered ones count."""
    label = request.label_question
    controls = [item for item, kind in kinds.items() if label is not None and kind in EXPECTED]
    attention = [item for item, kind in kinds.items() if kind == "attention"]
    correct = np.full((len(answers), len(controls)), np.nan)
    for row, ratings in enumerate(answers.values()):
        for column, control in enumerate(controls):
            if label is not None and control in ratings:
                correct[row, column] = ratings[control].get(label.name) == EXPECTED[kinds[control]]
    uncertain = np.array([kinds[control] == "null" for control in controls], np.bool_)
    figures = score_controls(correct, uncertain)
    expected = {question.name: ATTENTION[question.kind] for question in request.question_list}
    scores = {}
    for row, (rater, ratings) in enumerate(answers.items()):
        missed = sum(item in ratings and dict(ratings[item]) != expected for item in attention)
        hits, n = int(figures.correct[row]), int(figures.n[row])
        failed = missed > 0 or (n > 0 and hits / n < request.least_control_score)
        unchecked = n == 0 and not figures.dropped.all()
        scores[rater] = RaterScore(hits, n, missed, unchecked, failed)
    return scores, [control for control, dropped in zip(controls, figures.dropped, strict=True) if dropped]


def study_results(session: Session, study: Study) -> StudyResults:
    """Raters, agreement, and the answers by question and method."""
    ratings = load_ratings(session, study)
    raters = session.scalars(select(StudyRater).where(StudyRater.study_id == study.id).order_by(StudyRater.id))
    questions = study.request.question_list
    methods = dict.fromkeys(item.method for item in ratings.edits)
    complete = ratings.complete
    return StudyResults(
        study=study.id,
        job=study.job_id,
        items=len(ratings.edits),
        complete=len(complete),
        raters=[_rater_figures(rater, ratings) for rater in raters],
        dropped_controls=ratings.dropped_controls,
        agreement={question.name: _agreement(study.id, question, ratings) for question in questions},
        figures=[
            row.model_copy(update={"factor": factor})
            for question in questions
            for method in methods
            for factor, items in _parts(ratings, method).items()
            for row in [figures(question, method, items, complete, study.request.consensus)]
        ],
    )


def _parts(ratings: Ratings, method: str) -> dict[str, list[RatedItem]]:
    """The edits of a method (""), and those of each factor in a study by factors."""
    items = [item for item in ratings.edits if item.method == method]
    factors = sorted({item.factor for item in items}) if ratings.request.per_factor is not None else []
    return {"": items, **{factor: [item for item in items if item.factor == factor] for factor in factors}}


def sync_job(session: Session, job_id: str) -> None:
    """`sync_reviews` of all studies of a job."""
    for study in session.scalars(select(Study).where(Study.job_id == job_id).order_by(Study.id)).all():
        sync_reviews(session, study)


def sync_reviews(session: Session, study: Study) -> None:
    """Make the study's reviews those of its consensus: `label_kept` of complete items, "unsure" without one.

    It locks the study's row until the transaction ends, so that each of several raters who finish at the same time
    sees the answers and reviews of those before.
    """
    if study.request.label_question is None or study.request.element is not None:
        return  # an image that keeps one element may have lost another
    locked = select(Study.id).where(Study.id == study.id).with_for_update(key_share=True)
    if session.scalar(locked) is None:
        return  # deleted meanwhile
    agreed_verdicts = _verdicts(session, study)
    by_study = (is_answer(study.job_id, "review"), Answer.study_id == study.id)
    stored = {row.item: row for row in session.scalars(select(Answer).where(*by_study))}
    if outdated := sorted(set(stored) - set(agreed_verdicts)):
        session.execute(delete(Answer).where(*by_study, Answer.item.in_(outdated)))
    key = {"job_id": study.job_id, "kind": "review", "author": study.reviewer, "study_id": study.id}
    for edit, (verdict, failure) in agreed_verdicts.items():
        note = f"consensus of study {study.id}"
        review = ReviewRequest(verdict=verdict, failure=failure, note=note).model_dump()
        if edit not in stored:
            session.add(Answer(item=edit, content=review, **key))
        elif stored[edit].content != review:
            stored[edit].content, stored[edit].answered_at = review, utc_now()


def _verdicts(session: Session, study: Study) -> dict[str, tuple[ReviewVerdict, FailureMode | None]]:
    """The consensus on the label of each complete edit, and on what is wrong, which makes an unsure one invalid.

    The database counts the answers.
    """
    i, request = StudyItem, study.request
    scores = load_scores(session, study)
    counts = count_usable(session, study, scores, request.label_question)
    modes = {} if request.failure_question is None else count_usable(session, study, scores, request.failure_question)
    edits = session.execute(select(i.id, i.counterfactual_id).where(i.study_id == study.id, i.kind == "edit")).all()
    needed = study.request.raters_per_item
    complete = {item: counts[item] for item, _ in edits if item in counts and counts[item].total() >= needed}
    columns = [[row["yes"], row["no"], row.total()] for row in complete.values()]
    yes, no, answers = np.array(columns, np.int64).reshape(-1, 3).T
    agreed = dict(zip(complete, consensus(yes, no, answers, request.consensus), strict=True))
    verdicts: dict[str, tuple[ReviewVerdict, FailureMode | None]] = {}
    for item, edit in edits:
        if item in agreed:
            verdict, failure = _VERDICTS[int(agreed[item])], _agreed_mode(modes.get(item, Counter()), request.consensus)
            verdicts[edit] = ("invalid" if failure is not None and verdict == "unsure" else verdict, failure)
    return verdicts


def _agreed_mode(counts: Counter[str], share: float) -> FailureMode | None:
    """The failure mode that `share` of an item's raters name."""
    needed = share * counts.total() - 1e-9
    return next((mode for mode in FAILURE_MODES if counts[mode] and counts[mode] >= needed), None)


def figures(
    question: Question, method: str, items: Sequence[RatedItem], complete: Mapping[str, list[Answers]], share: float
) -> QuestionFigures:
    """The answers to a question about the complete ones of a method's items."""
    items = [item for item in items if item.id in complete]
    group = _groups(items)
    counts = _counts(question, [complete[item.id] for item in items])
    if question.kind == "scale":
        means = counts @ np.arange(1.0, 6.0) / np.maximum(counts.sum(axis=1), 1)
        seed = derive_seed("study mean", question.name, method)
        return QuestionFigures(
            question=question.name, method=method, items=len(items), mean=mean_rating(means, group, seed)
        )
    if question.kind == "failure":
        return _failure_figures(question, method, [complete[item.id] for item in items], group, share)
    agreed = _consensus(question, items, complete, share)
    answers = np.repeat(np.tile([True, False, False], len(items)), counts.ravel())
    return QuestionFigures(
        question=question.name,
        method=method,
        items=len(items),
        yes=clustered_rate(agreed == 1, group),
        no=int((agreed == -1).sum()),
        undecided=int((agreed == 0).sum()),
        decided=clustered_rate(agreed[agreed != 0] == 1, group[agreed != 0]),
        answers=clustered_rate(answers, np.repeat(group, counts.sum(axis=1))),
    )


def _failure_figures(
    question: Question, method: str, rated: Sequence[Sequence[Answers]], group: Integers, share: float
) -> QuestionFigures:
    """How many items have a consensus for each failure mode, and for none."""
    counts = [Counter(answers[question.name] for answers in item) for item in rated]
    modes = [_agreed_mode(count, share) for count in counts]
    fine = sum(count["none"] >= share * count.total() - 1e-9 for count in counts)
    shares = [
        (mode, clustered_rate(np.array([found == mode for found in modes], np.bool_), group)) for mode in FAILURE_MODES
    ]
    return QuestionFigures(
        question=question.name,
        method=method,
        items=len(counts),
        no=fine,
        undecided=len(counts) - fine - sum(mode is not None for mode in modes),
        failures=[FailureShare(mode=mode, share=rate) for mode, rate in shares if rate.count],
    )


def _consensus(
    question: Question, items: Sequence[RatedItem], complete: Mapping[str, list[Answers]], share: float
) -> Integers:
    counts = _counts(question, [complete[item.id] for item in items])
    return consensus(counts[:, 0], counts[:, 1], counts.sum(axis=1), share)


def _counts(question: Question, answers: Sequence[Sequence[Answers]]) -> Integers:
    """How many raters gave each choice, as items × choices."""
    choices = CHOICES[question.kind]
    rows = [[sum(rating[question.name] == choice for rating in item) for choice in choices] for item in answers]
    return np.array(rows, np.int64).reshape(len(answers), len(choices))


def _groups(items: Sequence[RatedItem]) -> Integers:
    return np.unique(np.array([item.group for item in items], np.str_), return_inverse=True)[1].astype(np.int64)


def _agreement(study_id: str, question: Question, ratings: Ratings) -> Agreement:
    usable = ratings.usable
    items = [item for item in ratings.edits if len(usable.get(item.id, ())) >= 2]
    counts = _counts(question, [usable[item.id] for item in items])
    if question.kind != "scale":
        counts = counts[:, :-1]  # "cannot tell" is a missing answer
    scale, answers = _SCALES[question.kind], counts.sum(axis=1)
    interval = alpha_interval(counts, scale, _groups(items), derive_seed("alpha", study_id, question.name))
    low, high = interval or (None, None)
    return Agreement(
        alpha=alpha(counts, scale), low=low, high=high, items=int((answers >= 2).sum()), answers=int(answers.sum())
    )


def _rater_figures(rater: StudyRater, ratings: Ratings) -> RaterFigures:
    score = ratings.scores[rater.id]
    return RaterFigures(
        rater=rater.id,
        name=rater.name or "",
        assigned=len(rater.items),
        answered=len(ratings.answers[rater.id]),
        correct=score.correct,
        controls=score.controls,
        attention_missed=score.attention_missed,
        excluded=score.failed or (score.unchecked and bool(ratings.answers[rater.id])),
    )
