"""The results of a study in the shape that the papers print, and the reviews that follow from its consensus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gateway.analysis.agreement import Scale, alpha, alpha_interval, consensus, mean_rating
from gateway.analysis.certainty import clustered_rate
from gateway.analysis.effects import Integers
from gateway.database.table_base import utc_now
from gateway.database.tables import Review, Study, StudyItem, StudyRater
from gateway.studies.ratings import Answers, RatedItem, Ratings, count_usable, load_ratings, load_scores
from gateway.studies.studies import find
from shared.schemas.reviews import ReviewVerdict
from shared.schemas.studies import (
    CHOICES,
    Agreement,
    Question,
    QuestionFigures,
    QuestionKind,
    RaterFigures,
    StudyResults,
)
from shared.seeds import derive_seed

_SCALES: Mapping[QuestionKind, Scale] = {"yes_no": "nominal", "scale": "ordinal"}
_VERDICTS: Mapping[int, ReviewVerdict] = {1: "valid", -1: "invalid", 0: "unsure"}


def study_results(session: Session, owner: str, study_id: str) -> StudyResults:
    """Raters, agreement, and the answers by question and method. Raises NotFound."""
    study = find(session, owner, study_id)
    ratings = load_ratings(session, study)
    raters = session.scalars(select(StudyRater).where(StudyRater.study_id == study_id).order_by(StudyRater.id))
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
            figures(
                question, method, [i for i in ratings.edits if i.method == method], complete, study.request.consensus
            )
            for question in questions
            for method in methods
        ],
    )


def sync_job(session: Session, job_id: str) -> None:
    """`sync_reviews` of all studies of a job."""
    for study in session.scalars(select(Study).where(Study.job_id == job_id).order_by(Study.id)).all():
        sync_reviews(session, study)


def sync_reviews(session: Session, study: Study) -> None:
    """Make the study's reviews those of its consensus: `label_kept` of complete items, "unsure" without one.

    It locks the study's row until the transaction ends, so that each of several raters who finish at the same time
    sees the answers and reviews of those before.
    """
    if study.request.label_question is None:
        return
    locked = select(Study.id).where(Study.id == study.id).with_for_update(key_share=True)
    if session.scalar(locked) is None:
        return  # deleted meanwhile
    agreed_verdicts = _verdicts(session, study)
    by_study = (Review.job_id == study.job_id, Review.reviewer == study.reviewer)
    stored = {row.counterfactual_id: row for row in session.scalars(select(Review).where(*by_study))}
    if outdated := sorted(set(stored) - set(agreed_verdicts)):
        session.execute(delete(Review).where(*by_study, Review.counterfactual_id.in_(outdated)))
    for edit, verdict in agreed_verdicts.items():
        if edit not in stored:
            note = f"consensus of study {study.id}"
            row = Review(counterfactual_id=edit, reviewer=study.reviewer, job_id=study.job_id, verdict=verdict)
            row.note = note
            session.add(row)
        elif stored[edit].verdict != verdict:
            stored[edit].verdict, stored[edit].reviewed_at = verdict, utc_now()


def _verdicts(session: Session, study: Study) -> dict[str, ReviewVerdict]:
    """The consensus on the label of each complete edit. The database counts the answers."""
    i = StudyItem
    counts = count_usable(session, study, load_scores(session, study))
    edits = session.execute(select(i.id, i.counterfactual_id).where(i.study_id == study.id, i.kind == "edit")).all()
    needed = study.request.raters_per_item
    complete = {edit: counts[item] for item, edit in edits if item in counts and counts[item].total() >= needed}
    columns = [[row["yes"], row["no"], row.total()] for row in complete.values()]
    yes, no, answers = np.array(columns, np.int64).reshape(-1, 3).T
    verdicts = consensus(yes, no, answers, study.request.consensus)
    return {edit: _VERDICTS[int(verdict)] for edit, verdict in zip(complete, verdicts, strict=True)}


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
    if question.kind == "yes_no":
        counts = counts[:, :2]  # "cannot tell" is a missing answer
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
