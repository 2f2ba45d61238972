"""Source images that belong together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("source_images", sa.Column("group_name", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("source_images", "group_name")
