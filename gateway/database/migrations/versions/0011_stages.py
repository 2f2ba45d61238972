"""What is done with a source image that is in progress."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("source_images", sa.Column("stage", sa.String(length=16), nullable=True))


def downgrade() -> None:
    op.drop_column("source_images", "stage")
