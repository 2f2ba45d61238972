"""Models under test that users upload: their rows, which of them a job tests, and which images have counterfactuals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database import sessions

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "models_under_test",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("format", sa.String(length=20), nullable=False),
        sa.Column("task", sa.String(length=20), nullable=False),
        sa.Column("classes", _JSON, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("licence", sa.String(length=200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["owners.id"], name=op.f("fk_models_under_test_owner_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models_under_test")),
        sa.UniqueConstraint("owner_id", "name", name=op.f("uq_models_under_test_owner_id_name")),
    )
    op.create_index("ix_models_under_test_digest", "models_under_test", ["owner_id", "digest"], unique=False)
    op.add_column("jobs", sa.Column("uploaded_models", _JSON, nullable=False, server_default=sa.text("'{}'")))
    op.add_column("source_images", sa.Column("generated", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute("UPDATE source_images SET generated = true WHERE state = 'done'")


def downgrade() -> None:
    op.drop_column("source_images", "generated")
    op.drop_column("jobs", "uploaded_models")
    op.drop_index("ix_models_under_test_digest", "models_under_test")
    op.drop_table("models_under_test")
