"""Findings with a status or a note."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.database import sessions

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "noted_findings",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("finding", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("method", sa.String(length=50), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("factor", sa.String(length=20), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("direction", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("author", sa.String(length=64), nullable=False),
        sa.Column("noted_at", sessions.UtcDateTime(), nullable=False),
        sa.CheckConstraint(
            "status IN ('confirmed', 'artefact', 'fixed', 'known')", name=op.f("ck_noted_findings_status")
        ),
        sa.CheckConstraint("direction IN ('to', 'from')", name=op.f("ck_noted_findings_direction")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_noted_findings_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "finding", name=op.f("pk_noted_findings")),
    )


def downgrade() -> None:
    op.drop_table("noted_findings")
