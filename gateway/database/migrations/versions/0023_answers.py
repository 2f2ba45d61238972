"""One table of answers in place of those of reviews, marks, notes and ratings. Nothing was released: none is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database.sessions import UtcDateTime

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("item", sa.String(64), nullable=False),
        sa.Column("author", sa.String(64), nullable=False),
        sa.Column("study_id", sa.String(64)),
        sa.Column("content", _JSON, nullable=False),
        sa.Column("answered_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('review', 'mark', 'note', 'rating')", name=op.f("ck_answers_kind")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_answers_job_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_answers_study_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "kind", "item", "author", name=op.f("pk_answers")),
    )
    op.create_index(op.f("ix_answers_study_id"), "answers", ["study_id"])
    columns = ["job_id", "kind", "answered_at", "item", "author"]
    op.create_index("ix_answers_job_id_kind_answered_at", "answers", columns)
    for table in ("reviews", "own_image_marks", "noted_findings", "study_answers"):
        op.drop_table(table)


def downgrade() -> None:
    op.drop_table("answers")
    _create("reviews", "counterfactual_id reviewer", "job_id", "verdict", "note")
    with op.batch_alter_table("reviews") as reviews:
        reviews.add_column(sa.Column("edit_shown", sa.Boolean()))
        reviews.add_column(sa.Column("arm_shown", sa.Boolean(), nullable=False, server_default=sa.false()))
        reviews.add_column(sa.Column("realism", sa.Integer()))
        reviews.add_column(sa.Column("reviewed_at", UtcDateTime(), nullable=False))
    order = ["job_id", "reviewed_at", "counterfactual_id", "reviewer"]
    op.create_index("ix_reviews_job_id_reviewed_at", "reviews", order)
    _create("own_image_marks", "job_id image_digest factor value reviewer", "shows")
    _create("noted_findings", "job_id finding", "status", "note", "author")
    _create("study_answers", "item_id rater_id", "answers")


def _create(table: str, key: str, *columns: str) -> None:
    """An older table, as far as older revisions ask for it."""
    names = key.split()
    op.create_table(
        table,
        *(sa.Column(name, sa.String(64), nullable=False) for name in names),
        *(sa.Column(name, sa.Text()) for name in columns),
        sa.PrimaryKeyConstraint(*names, name=op.f(f"pk_{table}")),
    )
