"""A study's answers in memory, without those of raters whom the control items exclude."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.agreement import score_controls
from gateway.database.tables import Counterfactual, SourceImage, Study, StudyAnswer, StudyItem, StudyRater
from shared.schemas.studies import ATTENTION, ItemKind, StudyRequest

Answers = Mapping[str, str]  # by the name of the question
EXPECTED: Mapping[ItemKind, str] = {"null": "yes", "broken": "no"}


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
    """A rater's control items: `correct` of `controls` that count, and attention checks answered otherwise."""

    correct: int
    controls: int
    attention_missed: int
    excluded: bool


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
    i, c, s, a = StudyItem, Counterfactual, SourceImage, StudyAnswer
    rows = select(i.id, i.kind, c.id, c.method, s.group_name, s.id).join(c, i.counterfactual_id == c.id)
    rows = rows.join(s, c.source_image_id == s.id).where(i.study_id == study.id).order_by(c.id, i.id)
    items = {row[0]: RatedItem(row[0], row[1], row[2], row[3], row[4] or row[5]) for row in session.execute(rows).all()}
    raters = session.scalars(select(StudyRater.id).where(StudyRater.study_id == study.id).order_by(StudyRater.id))
    answers: dict[str, dict[str, Answers]] = {rater: {} for rater in raters}
    of_study = select(a.rater_id, a.item_id, a.answers).join(i, a.item_id == i.id).where(i.study_id == study.id)
    for rater, item, rating in session.execute(of_study):
        answers[rater][item] = rating
    scores, dropped = score_raters(study.request, list(items.values()), answers)
    return Ratings(study.request, items, answers, scores, dropped)


def score_raters(
    request: StudyRequest, items: Sequence[RatedItem], answers: Mapping[str, Mapping[str, Answers]]
) -> tuple[dict[str, RaterScore], list[str]]:
    """The control items of each rater, and the ids of dropped control items. Only answered ones count."""
    label = request.label_question
    controls = [item for item in items if label is not None and item.kind in EXPECTED]
    attention = [item for item in items if item.kind == "attention"]
    correct = np.full((len(answers), len(controls)), np.nan)
    for row, ratings in enumerate(answers.values()):
        for column, control in enumerate(controls):
            if label is not None and control.id in ratings:
                correct[row, column] = ratings[control.id].get(label.name) == EXPECTED[control.kind]
    uncertain = np.array([control.kind == "null" for control in controls], np.bool_)
    figures = score_controls(correct, uncertain)
    expected = {question.name: ATTENTION[question.kind] for question in request.question_list}
    scores = {}
    for row, (rater, ratings) in enumerate(answers.items()):
        missed = sum(item.id in ratings and dict(ratings[item.id]) != expected for item in attention)
        hits, n = int(figures.correct[row]), int(figures.n[row])
        excluded = missed > 0 or (n > 0 and hits / n < request.least_control_score)
        scores[rater] = RaterScore(hits, n, missed, excluded)
    return scores, [control.id for control, dropped in zip(controls, figures.dropped, strict=True) if dropped]
