"""Indexes that answer how far a job has come without a look at its rows, which are gigabytes in a large one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_RENDERED = sa.text("image_digest IS NOT NULL")


def upgrade() -> None:
    op.create_index("ix_source_images_job_id_state", "source_images", ["job_id", "state", "position"])
    op.create_index("ix_source_images_job_id_updated_at", "source_images", ["job_id", "updated_at"])
    op.create_index("ix_counterfactuals_funnel", "counterfactuals", ["job_id", "method", "arm", "check"])
    op.create_index(
        "ix_counterfactuals_rendered",
        "counterfactuals",
        ["job_id", "method", "arm"],
        sqlite_where=_RENDERED,
        postgresql_where=_RENDERED,
    )


def downgrade() -> None:
    op.drop_index("ix_counterfactuals_rendered", "counterfactuals")
    op.drop_index("ix_counterfactuals_funnel", "counterfactuals")
    op.drop_index("ix_source_images_job_id_updated_at", "source_images")
    op.drop_index("ix_source_images_job_id_state", "source_images")
