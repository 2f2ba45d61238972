"""Repairs: models under test that are trained on counterfactuals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database import sessions

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
_STATES = "state IN ('running', 'done', 'failed', 'cancelled')"


def upgrade() -> None:
    op.create_table(
        "repairs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("progress", _JSON, nullable=False),
        sa.Column("result", _JSON, nullable=True),
        sa.Column("token", sa.String(length=64), nullable=True),
        sa.Column("beat", sa.Integer(), nullable=False),
        sa.Column("heard_at", sessions.UtcDateTime(), nullable=True),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.Column("finished_at", sessions.UtcDateTime(), nullable=True),
        sa.CheckConstraint(_STATES, name=op.f("ck_repairs_state")),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_repairs_owner_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_repairs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repairs")),
    )
    op.create_index(op.f("ix_repairs_job_id"), "repairs", ["job_id"], unique=False)
    op.create_index(op.f("ix_repairs_state"), "repairs", ["state"], unique=False)
    op.create_index("ix_repairs_owner_id_created_at_id", "repairs", ["owner_id", "created_at", "id"], unique=False)


def downgrade() -> None:
    op.drop_table("repairs")
