"""What a rater sees and answers, item by item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.database.columns import StoredChange
from gateway.database.sessions import upsert
from gateway.database.table_base import utc_now
from gateway.database.tables import Counterfactual, SourceImage, Study, StudyAnswer, StudyItem, StudyRater
from gateway.studies.raters import Invited
from gateway.studies.results import sync_reviews
from shared.problems import InvalidInput, NotFound
from shared.schemas.studies import CHOICES, Question, StudyRequest

UNLABELLED = "what the original shows"
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class ItemView:
    """An item as raters see it: the digests of both images, the questions, and their earlier answers."""

    id: str
    original: str
    changed: str
    attention: bool
    label: str
    change: str
    answers: Mapping[str, str]

    def text(self, question: Question) -> str:
        """The question about this item."""
        return question.text.replace("{label}", self.label).replace("{change}", self.change)


@dataclass(frozen=True, slots=True)
class RatingTurn:
    """Where a rater is: the item to rate (None: finished), the one before it, and how many of all are rated."""

    item: ItemView | None
    before: str | None
    answered: int
    total: int


def turn(session: Session, invited: Invited, item_id: str | None = None) -> RatingTurn:
    """The named item of a rater, or the first that they have not rated. Raises NotFound for another's item."""
    rater = invited.rater
    answered = _answered(session, rater)
    if item_id is not None and item_id not in rater.items:
        raise NotFound("this link has no such item")
    current = item_id or next((name for name in rater.items if name not in answered), None)
    place = len(rater.items) if current is None else rater.items.index(current)
    return RatingTurn(
        item=None if current is None else view(session, invited.study, current, answered.get(current, {})),
        before=rater.items[place - 1] if place else None,
        answered=len(answered),
        total=len(rater.items),
    )


def view(session: Session, study: Study, item_id: str, answers: Mapping[str, str] | None = None) -> ItemView:
    """An item of a study. Raises NotFound."""
    for item in views(session, study, item_id):
        return replace(item, answers=answers or {})
    raise NotFound(f"the study has no item {item_id!r}")


def views(session: Session, study: Study, item_id: str | None = None) -> list[ItemView]:
    """All items of a study, or the one with this id, in the order of their random ids."""
    i, c, s = StudyItem, Counterfactual, SourceImage
    pairs = select(i, c.changes, s.digest, s.ground_truth, s.mask_classes).join(c, i.counterfactual_id == c.id)
    pairs = pairs.join(s, c.source_image_id == s.id).where(i.study_id == study.id).order_by(i.id)
    return [
        ItemView(
            id=item.id,
            original=original or "",  # sources without an image have no edits
            changed=item.shown_digest,
            attention=item.kind == "attention",
            label=truth or ", ".join(classes or ()) or UNLABELLED,
            change=describe_changes(changes),
            answers={},
        )
        for item, changes, original, truth, classes in session.execute(
            pairs if item_id is None else pairs.where(i.id == item_id)
        )
    ]


def own_item(session: Session, invited: Invited, item_id: str) -> ItemView:
    """One of the rater's own items, without answers. Raises NotFound."""
    if item_id not in invited.rater.items:
        raise NotFound("this link has no such item")
    return view(session, invited.study, item_id)


def record(session: Session, invited: Invited, item_id: str, answers: Mapping[str, str]) -> None:
    """Store a rater's answers about an item of theirs. Replaces earlier ones. Raises NotFound and InvalidInput."""
    rater, study = invited
    if item_id not in rater.items:
        raise NotFound("this link has no such item")
    checked_answers = checked(study.request, answers)
    key = {"item_id": item_id, "rater_id": rater.id}
    columns = {"answers": checked_answers, "answered_at": utc_now()}
    upsert(session, StudyAnswer, key, columns)
    rated = session.scalar(select(func.count()).where(StudyAnswer.rater_id == rater.id))
    if rated == len(rater.items):
        sync_reviews(session, study)


def checked(request: StudyRequest, form: Mapping[str, str]) -> dict[str, str]:
    """One allowed answer to every question. Raises InvalidInput."""
    answers = {}
    for question in request.question_list:
        answer = form.get(question.name, "").strip().lower()
        choices = CHOICES[question.kind]
        if answer not in choices:
            problem = f"it is {answer[:50]!r}" if answer else "there is no answer"
            raise InvalidInput(f"answer {question.name!r} with {', '.join(choices[:-1])} or {choices[-1]}; {problem}")
        answers[question.name] = answer
    return answers


def describe_changes(changes: list[StoredChange]) -> str:
    """The description of an edit for raters: "day → night", "→ rain" for an added phrase."""
    pairs = [
        (change["from_value"] or change["from_phrase"], change["to_value"] or change["to_phrase"]) for change in changes
    ]
    return "; ".join(f"{old} → {new}".strip() if new else f"without {old}" for old, new in pairs) or NOTHING


def _answered(session: Session, rater: StudyRater) -> dict[str, dict[str, str]]:
    rows = select(StudyAnswer.item_id, StudyAnswer.answers).where(StudyAnswer.rater_id == rater.id)
    return {row[0]: row[1] for row in session.execute(rows)}
