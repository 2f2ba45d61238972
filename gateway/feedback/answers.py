"""What people say about the items of a job: one row for each item and author, selected and stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, and_
from sqlalchemy.orm import Session

from gateway.database.columns import AnswerKind
from gateway.database.sessions import upsert
from gateway.database.table_base import utc_now
from gateway.database.tables import Answer
from shared.schemas.base import JsonObject

Item = TypeVar("Item")


@dataclass(frozen=True)
class Turn(Generic[Item]):
    """What somebody is asked next (None: nothing), and which item they answered last.

    They have `answered` items; `total` is the number that makes them ready.
    """

    item: Item | None
    before: Item | None
    answered: int
    total: int


def is_answer(job_id: str, kind: AnswerKind) -> ColumnElement[bool]:
    """Whether a row is an answer of this kind about an item of the job."""
    return and_(Answer.job_id == job_id, Answer.kind == kind)


def store_answer(
    session: Session,
    job_id: str,
    kind: AnswerKind,
    item: str,
    author: str,
    content: JsonObject,
    study_id: str | None = None,
) -> Answer:
    """Store an author's answer about an item. Replaces their earlier one."""
    key = {"job_id": job_id, "kind": kind, "item": item, "author": author}
    upsert(session, Answer, key, {"content": content, "answered_at": utc_now()}, study_id=study_id)
    return session.get_one(Answer, tuple(key.values()), populate_existing=True)
