"""What housekeeping needs: since when an image is unneeded, what a recorded call is about, when it was begun last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.database import sessions

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("images", sa.Column("unreferenced_since", sessions.UtcDateTime(), nullable=True))
    op.add_column("recorded_calls", sa.Column("source_digest", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_images_unreferenced_since"), "images", ["unreferenced_since"], unique=False)
    op.create_index(op.f("ix_counterfactuals_control_digest"), "counterfactuals", ["control_digest"], unique=False)
    op.create_index(op.f("ix_uploads_digest"), "uploads", ["digest"], unique=False)
    op.create_table(
        "chores",
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("begun_at", sessions.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_chores")),
    )


def downgrade() -> None:
    op.drop_table("chores")
    op.drop_index(op.f("ix_uploads_digest"), "uploads")
    op.drop_index(op.f("ix_counterfactuals_control_digest"), "counterfactuals")
    op.drop_index(op.f("ix_images_unreferenced_since"), "images")
    op.drop_column("recorded_calls", "source_digest")
    op.drop_column("images", "unreferenced_since")
