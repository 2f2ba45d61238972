"""Reports of cancelled jobs, and the services that made a job's results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database import sessions

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("report_due", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index(
        "ix_jobs_report_due",
        "jobs",
        ["id"],
        unique=False,
        sqlite_where=sa.text("report_due = 1"),
        postgresql_where=sa.text("report_due"),
    )
    op.create_table(
        "job_services",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("service", sa.String(length=50), nullable=False),
        sa.Column("revision", sa.String(length=200), nullable=False),
        sa.Column("info", _JSON, nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_services_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "service", "revision", name=op.f("pk_job_services")),
    )


def downgrade() -> None:
    op.drop_table("job_services")
    op.drop_index("ix_jobs_report_due", "jobs")
    op.drop_column("jobs", "report_due")
