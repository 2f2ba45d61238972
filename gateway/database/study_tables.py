"""Tables of human studies."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database.table_base import Id, Table, utc_now
from shared.schemas.studies import ItemKind, StudyRequest


class Study(Table):
    """Questions to people about counterfactuals of a job."""

    __tablename__ = "studies"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    request: Mapped[StudyRequest]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)

    @property
    def reviewer(self) -> str:
        """The reviewer of the reviews that its consensus gives."""
        return f"study-{self.id}"


class StudyItem(Table):
    """A pair of images that raters see: the source image of an edit, and the image `shown_digest`.

    `shown_digest` is the edit's image in items of kind `edit` and `attention`, its null arm's in `null`, and another
    source image's, which lacks a class of the first, in `broken`. The id is random, because raters see it.
    """

    __tablename__ = "study_items"
    __table_args__ = (CheckConstraint("kind IN ('edit', 'null', 'broken', 'attention')", name="kind"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"), index=True)
    kind: Mapped[ItemKind]
    counterfactual_id: Mapped[str] = mapped_column(ForeignKey("counterfactuals.id", ondelete="CASCADE"), index=True)
    shown_digest: Mapped[str] = mapped_column(ForeignKey("images.digest"), index=True)


class StudyRater(Table):
    """A person who rates: invited by a link (`token_hash`, `items` in their order), or named in a CSV file (`name`).

    `requests_until` limits the rate of requests, as in `ApiKey`.
    """

    __tablename__ = "study_raters"
    __table_args__ = (UniqueConstraint("study_id", "name"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    study_id: Mapped[str] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    name: Mapped[str | None] = mapped_column(Text)
    token_hash: Mapped[str | None] = mapped_column(String(64), unique=True)
    items: Mapped[list[str]] = mapped_column(default=list)
    requests_until: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class StudyAnswer(Table):
    """One rater's answers about one item, by the name of the question."""

    __tablename__ = "study_answers"

    item_id: Mapped[str] = mapped_column(ForeignKey("study_items.id", ondelete="CASCADE"), primary_key=True)
    rater_id: Mapped[str] = mapped_column(
        ForeignKey("study_raters.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    answers: Mapped[dict[str, str]]
    answered_at: Mapped[datetime] = mapped_column(default=utc_now)
