"""Marks of own images: whether people see a finding's value in a job's source images."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.database import sessions

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "own_image_marks",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("image_digest", sa.String(length=64), nullable=False),
        sa.Column("factor", sa.String(length=20), nullable=False),
        sa.Column("value", sa.String(length=300), nullable=False),
        sa.Column("reviewer", sa.String(length=64), nullable=False),
        sa.Column("shows", sa.String(length=16), nullable=False),
        sa.Column("marked_at", sessions.UtcDateTime(), nullable=False),
        sa.CheckConstraint("shows IN ('yes', 'no', 'unsure')", name=op.f("ck_own_image_marks_shows")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_own_image_marks_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint(
            "job_id", "image_digest", "factor", "value", "reviewer", name=op.f("pk_own_image_marks")
        ),
    )


def downgrade() -> None:
    op.drop_table("own_image_marks")
