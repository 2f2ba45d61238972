"""Reviews say whether the arm was shown, too. Of reviews before, nobody knows, so they count as without it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("reviews") as reviews:
        reviews.add_column(sa.Column("arm_shown", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("reviews") as reviews:
        reviews.drop_column("arm_shown")
