"""A study's answers in memory, without those of raters whom the control items exclude."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from sqlalchemy import func, literal, select
from sqlalchemy.orm import Session

from gateway.analysis.agreement import score_controls
from gateway.database.tables import Counterfactual, SourceImage, Study, StudyAnswer, StudyItem, StudyRater
from shared.schemas.studies import ATTENTION, ItemKind, StudyRequest

Answers = Mapping[str, str]  # by the name of the question
EXPECTED: Mapping[ItemKind, str] = {"null": "yes", "broken": "no"}
CHECKS: tuple[ItemKind, ...] = (*EXPECTED, "attention")


@dataclass(frozen=True, slots=True)
class RatedItem:
    """An item of a study. Items with the same `group` are not independent."""

    id: str
    kind: ItemKind
    edit: str
    method: str
    group: str


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
    rows = select(i.id, i.kind, c.id, c.method, s.group_name, s.id).join(c, i.counterfactual_id == c.id)
    rows = rows.join(s, c.source_image_id == s.id).where(i.study_id == study.id).order_by(c.id, i.id)
    items = {row[0]: RatedItem(row[0], row[1], row[2], row[3], row[4] or row[5]) for row in session.execute(rows).all()}
    answers = _answers(session, study, tuple(get_args(ItemKind)))
    scores, dropped = score_raters(study.request, {item.id: item.kind for item in items.values()}, answers)
    return Ratings(study.request, items, answers, scores, dropped)


def load_scores(session: Session, study: Study) -> dict[str, RaterScore]:
    """The score of each rater, from the answers about control items and attention checks alone."""
    i = StudyItem
    kinds = {row.id: row.kind for row in session.execute(select(i.id, i.kind).where(i.study_id == study.id))}
    return score_raters(study.request, kinds, _answers(session, study, CHECKS))[0]


def count_usable(session: Session, study: Study, scores: Mapping[str, RaterScore]) -> dict[str, Counter[str]]:
    """How many raters who count answered each item, by their answer about the label ("" without such a question)."""
    i, a, label = StudyItem, StudyAnswer, study.request.label_question
    answer = literal("") if label is None else a.answers[label.name].as_string()
    usable = [rater for rater, score in scores.items() if not score.excluded]
    counted = select(a.item_id, answer.label("answer"), func.count()).join(i, a.item_id == i.id)
    counted = counted.where(i.study_id == study.id, a.rater_id.in_(usable)).group_by(a.item_id, "answer")
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for item, choice, raters in session.execute(counted):
        counts[item][choice] = raters
    return counts


def _answers(session: Session, study: Study, kinds: Sequence[ItemKind]) -> dict[str, dict[str, Answers]]:
    """The answers about items of these kinds by rater, then by item; all raters of the study, by id."""
    i, a = StudyItem, StudyAnswer
    raters = session.scalars(select(StudyRater.id).where(StudyRater.study_id == study.id).order_by(StudyRater.id))
    answers: dict[str, dict[str, Answers]] = {rater: {} for rater in raters}
    of_study = select(a.rater_id, a.item_id, a.answers).join(i, a.item_id == i.id)
    for rater, item, rating in session.execute(of_study.where(i.study_id == study.id, i.kind.in_(kinds))):
        answers[rater][item] = rating
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
