"""Tables of what people say: their answers, and the studies that ask many of them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database.columns import AnswerKind
from gateway.database.table_base import Id, Table, utc_now
from shared.schemas.base import JsonObject
from shared.schemas.studies import ItemKind, StudyRequest


class Answer(Table):
    """What somebody says about an item of a job. A new answer replaces their earlier one about it.

    `kind` says what is asked and what `item` is: a "review" is of a counterfactual, a "mark" of an own image and a
    value (`gateway.feedback.marks`), a "note" on a finding, a "rating" of a study's item. `content` has the fields of
    the request that was answered. `author` is the id of an API key (`gateway.auth.keys.KeyView`) or `LOCAL_OWNER`
    without API keys, a rater's id, or `Study.reviewer`. Ratings, and reviews by a consensus, go with their study.
    Lists are sorted by (answered_at, item, author), newest first.
    """

    __tablename__ = "answers"
    __table_args__ = (
        Index("ix_answers_job_id_kind_answered_at", "job_id", "kind", "answered_at", "item", "author"),
        CheckConstraint("kind IN ('review', 'mark', 'note', 'rating')", name="kind"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[AnswerKind] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(Id, primary_key=True)
    author: Mapped[str] = mapped_column(String(64), primary_key=True)
    study_id: Mapped[str | None] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"), index=True)
    content: Mapped[JsonObject]
    answered_at: Mapped[datetime] = mapped_column(default=utc_now)


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
