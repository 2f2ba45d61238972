"""Counters of a job in its row, of its source images by state and its counterfactuals by fate; jobs being deleted."""

from __future__ import annotations

from collections import Counter, defaultdict

import sqlalchemy as sa
from alembic import op

from gateway.database.columns import JSON_COLUMN
from gateway.database.sessions import UtcDateTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_IMAGES = sa.text(
    "SELECT job_id, state, count(*), count(ground_truth), count(mask_digest) FROM source_images GROUP BY 1, 2"
)
_EDITS = sa.text(
    'SELECT job_id, method, arm, "check", count(*), count(image_digest) FROM counterfactuals GROUP BY 1, 2, 3, 4'
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("counts", JSON_COLUMN, nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("deleted_at", UtcDateTime(), nullable=True))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    connection = op.get_bind()
    for job_id, state, number, labels, masks in connection.execute(_IMAGES):
        counts[job_id].update({"images": number, "labelled": labels + masks})
        if state in ("done", "failed", "cancelled"):
            counts[job_id][state] += number
    for job_id, method, arm, check, number, rendered in connection.execute(_EDITS):
        if arm == "null":
            counts[job_id][f"{method}/null"] += number
            continue
        fate = f"{method}/rejected/{check}" if check else f"{method}/accepted"
        counts[job_id].update({f"{method}/proposed": number, f"{method}/rendered": rendered, fate: number})
    jobs = sa.table("jobs", sa.column("id"), sa.column("counts", JSON_COLUMN))
    for job_id, count in sorted(counts.items()):
        op.execute(jobs.update().where(jobs.c.id == job_id).values(counts=dict(count)))
    op.drop_index("ix_counterfactuals_rendered", "counterfactuals")


def downgrade() -> None:
    rendered = sa.text("image_digest IS NOT NULL")
    op.create_index(
        "ix_counterfactuals_rendered",
        "counterfactuals",
        ["job_id", "method", "arm"],
        sqlite_where=rendered,
        postgresql_where=rendered,
    )
    op.drop_column("jobs", "deleted_at")
    op.drop_column("jobs", "counts")
