"""Which image an uploaded file gives: files are sent again, since colour profiles are now converted to sRGB."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM uploads")


def downgrade() -> None:
    op.execute("DELETE FROM uploads")
