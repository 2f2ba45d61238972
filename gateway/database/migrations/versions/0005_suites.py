"""Frozen suites, and which jobs keep or test one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database import sessions

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "suites",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("made_from", sa.String(length=64), nullable=False),
        sa.Column("filters", _JSON, nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_suites_owner_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suites")),
        sa.UniqueConstraint("owner_id", "name", name=op.f("uq_suites_owner_id_name")),
    )
    op.add_column("jobs", sa.Column("suite_id", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_jobs_suite_id"), "jobs", ["suite_id"], unique=False)


def downgrade() -> None:
    op.execute("DELETE FROM jobs WHERE suite_id IS NOT NULL")
    op.drop_index(op.f("ix_jobs_suite_id"), "jobs")
    op.drop_column("jobs", "suite_id")
    op.drop_table("suites")
