"""The backgrounds of jobs with compositions, and the masks of their objects."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_backgrounds",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["images.digest"], name=op.f("fk_job_backgrounds_digest")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_backgrounds_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "digest", name=op.f("pk_job_backgrounds")),
    )
    op.create_index(op.f("ix_job_backgrounds_digest"), "job_backgrounds", ["digest"])
    # In words that SQLite, too, understands without copying the table.
    op.execute(
        "ALTER TABLE source_images ADD COLUMN object_digest VARCHAR(64) "
        "CONSTRAINT fk_source_images_object_digest REFERENCES images (digest)"
    )
    op.create_index("ix_source_images_object_digest", "source_images", ["object_digest"])


def downgrade() -> None:
    op.drop_index("ix_source_images_object_digest", "source_images")
    op.drop_column("source_images", "object_digest")
    op.drop_table("job_backgrounds")
