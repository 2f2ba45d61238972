"""Reviews name a failure mode."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("reviews") as reviews:
        reviews.add_column(sa.Column("failure", sa.String(length=20), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("reviews") as reviews:
        reviews.drop_column("failure")
