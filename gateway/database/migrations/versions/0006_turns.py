"""When an image's turn comes: classes take turns, so a job that is looked at early has tried them all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_INDEX = "ix_source_images_unfinished"
_UNFINISHED = sa.text("state IN ('pending', 'leased')")


def upgrade() -> None:
    op.add_column("source_images", sa.Column("turn", sa.Integer(), nullable=False, server_default="0"))
    _index("job_id", "turn", "position")


def downgrade() -> None:
    _index("job_id", "position")
    op.drop_column("source_images", "turn")


def _index(*columns: str) -> None:
    op.drop_index(_INDEX, "source_images")
    op.create_index(_INDEX, "source_images", list(columns), sqlite_where=_UNFINISHED, postgresql_where=_UNFINISHED)
