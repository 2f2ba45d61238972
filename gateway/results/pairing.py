"""The one place that pairs an edit with its source image, its null arm and its sham arm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual
from gateway.kinds import alike
from gateway.kinds.rows import CounterfactualRow, PredictionRow

Row = TypeVar("Row", CounterfactualRow, Counterfactual)
Answer = TypeVar("Answer")


class Compared(NamedTuple, Generic[Answer]):
    """The predictions of one model for the images of a triple; None for an image without a prediction.

    `null` is the prediction for the null arm, or for the original where the edit has no null arm. `reference` is what
    the effect is measured against: the prediction for the sham arm, or without sham arm the same as `null`.
    """

    original: Answer | None
    null: Answer | None
    counterfactual: Answer | None
    reference: Answer | None


def change(compared: Compared[PredictionRow], label: str) -> Literal[-1, 0, 1]:
    """−1 if a class is lost (the model is right on the reference arm only), 1 if gained; 0 without a prediction too."""
    image, reference = compared.counterfactual, compared.reference
    if image is None or reference is None or image.holds(label) == reference.holds(label):
        return 0
    return 1 if image.holds(label) else -1


@dataclass(frozen=True, slots=True)
class Triple(Generic[Row]):
    """An edit with its original (the id of the source image), its null arm and its sham arm.

    `null` is None where the edit has no null arm, and is then compared with the original, or where the null arm is not
    among the rows; `sham` where it has no sham arm, or that is not among the rows.
    """

    original: str
    null: Row | None
    edit: Row
    sham: Row | None = None

    @property
    def arm(self) -> Row | None:
        """The arm that the edit is measured against: its sham arm, or else its null arm."""
        return self.null if self.edit.sham_ordinal is None else self.sham

    def predictions(self, by_image: Mapping[str, Answer]) -> Compared[Answer]:
        """The predictions for the three images, from one model's predictions by image id."""
        if self.edit.null_ordinal is None:
            null_answer = by_image.get(self.original)
        else:
            null_answer = None if self.null is None else by_image.get(self.null.id)
        reference = null_answer
        if self.edit.sham_ordinal is not None:
            reference = None if self.sham is None else by_image.get(self.sham.id)
        return Compared(by_image.get(self.original), null_answer, by_image.get(self.edit.id), reference)

    def compare(self, by_image: Mapping[str, PredictionRow]) -> Compared[PredictionRow]:
        """As `predictions`, without what only some of the images have, such as an object that is gone from one."""
        return Compared(*alike(self.predictions(by_image)))


def triples(rows: Iterable[Row]) -> Iterator[Triple[Row]]:
    """The edits among the rows in their order, each with its null and sham arm: equal source, method and ordinal."""
    rows = list(rows)
    arms = {(row.source_image_id, row.method, row.ordinal, row.arm): row for row in rows if row.arm != "edit"}
    for row in rows:
        if row.arm == "edit":
            null_arm, sham_arm = (
                None if ordinal is None else arms.get((row.source_image_id, row.method, ordinal, arm))
                for ordinal, arm in ((row.null_ordinal, "null"), (row.sham_ordinal, "sham"))
            )
            yield Triple(row.source_image_id, null_arm, row, sham_arm)


def load_triples(session: Session, edits: Sequence[Counterfactual]) -> list[Triple[Counterfactual]]:
    """Edits, in their order, with their null and sham arms, which one query loads."""
    c = Counterfactual
    ordinals = {ordinal for edit in edits for ordinal in (edit.null_ordinal, edit.sham_ordinal) if ordinal is not None}
    candidates = select(c).where(
        c.source_image_id.in_({edit.source_image_id for edit in edits}),
        c.method.in_({edit.method for edit in edits}),
        c.ordinal.in_(ordinals),
        c.arm != "edit",
    )
    return list(triples([*edits, *session.scalars(candidates)]))


def is_arm_of(arm: type[Counterfactual], edit: type[Counterfactual]) -> ColumnElement[bool]:
    """The pairing of `triples` as a condition of SQL: whether a row is the null arm or the sham arm of an edit."""
    return and_(
        arm.source_image_id == edit.source_image_id,
        arm.method == edit.method,
        or_(
            and_(arm.arm == "null", arm.ordinal == edit.null_ordinal),
            and_(arm.arm == "sham", arm.ordinal == edit.sham_ordinal),
        ),
    )
