"""Segmentation jobs: what a job's models do, masks of source images, and what segmenters say."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    kind = sa.Column("kind", sa.String(16), nullable=False, server_default="classification")
    op.add_column("jobs", kind)
    _add_image("source_images", "mask_digest")
    op.add_column("source_images", sa.Column("mask_classes", _JSON))
    _add_image("predictions", "map_digest")
    op.add_column("predictions", sa.Column("overlaps", _JSON))
    op.add_column("predictions", sa.Column("confusion", _JSON))


def downgrade() -> None:
    _drop_image("predictions", "map_digest")
    op.drop_column("predictions", "confusion")
    op.drop_column("predictions", "overlaps")
    _drop_image("source_images", "mask_digest")
    op.drop_column("source_images", "mask_classes")
    op.drop_column("jobs", "kind")


def _add_image(table: str, column: str) -> None:
    """A nullable reference to an image, in words that SQLite, too, understands without copying the table."""
    name = f"fk_{table}_{column}"
    op.execute(f"ALTER TABLE {table} ADD COLUMN {column} VARCHAR(64) CONSTRAINT {name} REFERENCES images (digest)")
    op.create_index(f"ix_{table}_{column}", table, [column])


def _drop_image(table: str, column: str) -> None:
    op.drop_index(f"ix_{table}_{column}", table)
    op.drop_column(table, column)
