"""Reviews: what people saw in counterfactuals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.database import sessions

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reviews",
        sa.Column("counterfactual_id", sa.String(length=64), nullable=False),
        sa.Column("reviewer", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("edit_shown", sa.Boolean(), nullable=True),
        sa.Column("realism", sa.Integer(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("reviewed_at", sessions.UtcDateTime(), nullable=False),
        sa.CheckConstraint("verdict IN ('valid', 'invalid', 'unsure')", name=op.f("ck_reviews_verdict")),
        sa.CheckConstraint("realism BETWEEN 1 AND 5", name=op.f("ck_reviews_realism")),
        sa.ForeignKeyConstraint(
            ["counterfactual_id"],
            ["counterfactuals.id"],
            name=op.f("fk_reviews_counterfactual_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_reviews_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("counterfactual_id", "reviewer", name=op.f("pk_reviews")),
    )
    order = ["job_id", "reviewed_at", "counterfactual_id", "reviewer"]
    op.create_index("ix_reviews_job_id_reviewed_at", "reviews", order, unique=False)


def downgrade() -> None:
    op.drop_table("reviews")
