"""Human studies: items, raters and their answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database import sessions

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_studies_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index(op.f("ix_studies_job_id"), "studies", ["job_id"], unique=False)
    _create_items()
    _create_raters()
    _create_answers()


def _create_items() -> None:
    op.create_table(
        "study_items",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("study_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("counterfactual_id", sa.String(length=64), nullable=False),
        sa.Column("shown_digest", sa.String(length=64), nullable=False),
        sa.CheckConstraint("kind IN ('edit', 'null', 'broken', 'attention')", name=op.f("ck_study_items_kind")),
        sa.ForeignKeyConstraint(
            ["counterfactual_id"],
            ["counterfactuals.id"],
            name=op.f("fk_study_items_counterfactual_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["shown_digest"], ["images.digest"], name=op.f("fk_study_items_shown_digest")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_study_items_study_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study_items")),
    )
    for column in ("counterfactual_id", "shown_digest", "study_id"):
        op.create_index(op.f(f"ix_study_items_{column}"), "study_items", [column], unique=False)


def _create_raters() -> None:
    op.create_table(
        "study_raters",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("study_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("token_hash", sa.String(length=64), nullable=True),
        sa.Column("items", _JSON, nullable=False),
        sa.Column("requests_until", sa.Double(), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_raters_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study_raters")),
        sa.UniqueConstraint("study_id", "name", name=op.f("uq_study_raters_study_id_name")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_study_raters_token_hash")),
    )


def _create_answers() -> None:
    op.create_table(
        "study_answers",
        sa.Column("item_id", sa.String(length=64), nullable=False),
        sa.Column("rater_id", sa.String(length=64), nullable=False),
        sa.Column("answers", _JSON, nullable=False),
        sa.Column("answered_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["item_id"], ["study_items.id"], name=op.f("fk_study_answers_item_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["rater_id"], ["study_raters.id"], name=op.f("fk_study_answers_rater_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("item_id", "rater_id", name=op.f("pk_study_answers")),
    )
    op.create_index(op.f("ix_study_answers_rater_id"), "study_answers", ["rater_id"], unique=False)


def downgrade() -> None:
    for table in ("study_answers", "study_raters", "study_items", "studies"):
        op.drop_table(table)
