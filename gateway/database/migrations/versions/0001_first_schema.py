"""The first schema: owners, images, jobs and their state, counterfactuals, predictions, recorded calls."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database import sessions

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "images",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("mode", sa.String(length=4), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_images")),
    )
    op.create_table(
        "owners",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_owners")),
    )
    op.create_table(
        "api_keys",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.Column("revoked_at", sessions.UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_api_keys_owner_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_api_keys")),
    )
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_api_keys_owner_id"), ["owner_id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("classes", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("methods", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("models", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("profile", sa.String(length=200), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("spec", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.Column("finished_at", sessions.UtcDateTime(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("lease_expires_at", sessions.UtcDateTime(), nullable=True),
        sa.Column("not_before", sessions.UtcDateTime(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lost_leases", sa.Integer(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'done', 'failed', 'cancelled')", name=op.f("ck_jobs_state")),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_jobs_owner_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("owner_id", "idempotency_key", name=op.f("uq_jobs_owner_id_idempotency_key")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_lease_token"), ["lease_token"], unique=False)
        batch_op.create_index("ix_jobs_owner_id_created_at_id", ["owner_id", "created_at", "id"], unique=False)
        batch_op.create_index(
            "ix_jobs_running",
            ["id"],
            unique=False,
            sqlite_where=sa.text("state = 'running'"),
            postgresql_where=sa.text("state = 'running'"),
        )

    op.create_table(
        "owned_images",
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["images.digest"], name=op.f("fk_owned_images_digest")),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_owned_images_owner_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner_id", "digest", name=op.f("pk_owned_images")),
    )
    with op.batch_alter_table("owned_images", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_owned_images_digest"), ["digest"], unique=False)

    op.create_table(
        "recorded_calls",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("endpoint", sa.String(length=50), nullable=False),
        sa.Column("revision", sa.String(length=200), nullable=False),
        sa.Column("reply", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["owners.id"], name=op.f("fk_recorded_calls_owner_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_recorded_calls")),
    )
    with op.batch_alter_table("recorded_calls", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_recorded_calls_owner_id"), ["owner_id"], unique=False)

    op.create_table(
        "uploads",
        sa.Column("owner_id", sa.String(length=64), nullable=False),
        sa.Column("original_digest", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["images.digest"], name=op.f("fk_uploads_digest")),
        sa.ForeignKeyConstraint(["owner_id"], ["owners.id"], name=op.f("fk_uploads_owner_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner_id", "original_digest", name=op.f("pk_uploads")),
    )
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("payload", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "sequence", name=op.f("pk_events")),
    )
    op.create_table(
        "reports",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("object_key", sa.String(length=300), nullable=False),
        sa.Column("metrics", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_reports_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_reports")),
    )
    op.create_table(
        "source_images",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("ground_truth", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("updated_at", sessions.UtcDateTime(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.String(length=64), nullable=True),
        sa.Column("lease_expires_at", sessions.UtcDateTime(), nullable=True),
        sa.Column("not_before", sessions.UtcDateTime(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lost_leases", sa.Integer(), nullable=False),
        sa.CheckConstraint("(state = 'leased') = (lease_token IS NOT NULL)", name=op.f("ck_source_images_lease")),
        sa.CheckConstraint(
            "state IN ('pending', 'leased', 'done', 'failed', 'cancelled')", name=op.f("ck_source_images_state")
        ),
        sa.ForeignKeyConstraint(["digest"], ["images.digest"], name=op.f("fk_source_images_digest")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_source_images_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_source_images")),
        sa.UniqueConstraint("job_id", "position", name=op.f("uq_source_images_job_id_position")),
    )
    with op.batch_alter_table("source_images", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_source_images_digest"), ["digest"], unique=False)
        batch_op.create_index("ix_source_images_job_id_digest", ["job_id", "digest"], unique=False)
        batch_op.create_index(batch_op.f("ix_source_images_lease_token"), ["lease_token"], unique=False)
        batch_op.create_index(
            "ix_source_images_leased",
            ["job_id", "lease_expires_at"],
            unique=False,
            sqlite_where=sa.text("state = 'leased'"),
            postgresql_where=sa.text("state = 'leased'"),
        )
        batch_op.create_index(
            "ix_source_images_unfinished",
            ["job_id", "position"],
            unique=False,
            sqlite_where=sa.text("state IN ('pending', 'leased')"),
            postgresql_where=sa.text("state IN ('pending', 'leased')"),
        )

    op.create_table(
        "counterfactuals",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("source_image_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=50), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("arm", sa.String(length=8), nullable=False),
        sa.Column("null_ordinal", sa.Integer(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("changes", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("factor", sa.String(length=20), nullable=True),
        sa.Column("from_value", sa.Text(), nullable=True),
        sa.Column("to_value", sa.Text(), nullable=True),
        sa.Column("caption", sa.Text(), nullable=False),
        sa.Column("new_caption", sa.Text(), nullable=False),
        sa.Column("image_digest", sa.String(length=64), nullable=True),
        sa.Column("control_digest", sa.String(length=64), nullable=True),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("check", sa.String(length=50), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("scores", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("lineage", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.CheckConstraint("arm IN ('edit', 'null')", name=op.f("ck_counterfactuals_arm")),
        sa.ForeignKeyConstraint(["control_digest"], ["images.digest"], name=op.f("fk_counterfactuals_control_digest")),
        sa.ForeignKeyConstraint(["image_digest"], ["images.digest"], name=op.f("fk_counterfactuals_image_digest")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_counterfactuals_job_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["source_image_id"],
            ["source_images.id"],
            name=op.f("fk_counterfactuals_source_image_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_counterfactuals")),
        sa.UniqueConstraint(
            "job_id", "position", "method", "ordinal", name=op.f("uq_counterfactuals_job_id_position_method_ordinal")
        ),
    )
    with op.batch_alter_table("counterfactuals", schema=None) as batch_op:
        batch_op.create_index("ix_counterfactuals_cell", ["job_id", "method", "factor", "to_value"], unique=False)
        batch_op.create_index(batch_op.f("ix_counterfactuals_image_digest"), ["image_digest"], unique=False)
        batch_op.create_index(batch_op.f("ix_counterfactuals_source_image_id"), ["source_image_id"], unique=False)

    op.create_table(
        "predictions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("source_image_id", sa.String(length=64), nullable=False),
        sa.Column("counterfactual_id", sa.String(length=64), nullable=True),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("predicted", sa.Text(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("ground_truth_probability", sa.Double(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("flipped", sa.Boolean(), nullable=True),
        sa.Column("top", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.ForeignKeyConstraint(
            ["counterfactual_id"],
            ["counterfactuals.id"],
            name=op.f("fk_predictions_counterfactual_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_predictions_job_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["source_image_id"], ["source_images.id"], name=op.f("fk_predictions_source_image_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_predictions")),
    )
    with op.batch_alter_table("predictions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_predictions_counterfactual_id"), ["counterfactual_id"], unique=False)
        batch_op.create_index("ix_predictions_job_id_model", ["job_id", "model"], unique=False)
        batch_op.create_index(batch_op.f("ix_predictions_source_image_id"), ["source_image_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("predictions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_predictions_source_image_id"))
        batch_op.drop_index("ix_predictions_job_id_model")
        batch_op.drop_index(batch_op.f("ix_predictions_counterfactual_id"))

    op.drop_table("predictions")
    with op.batch_alter_table("counterfactuals", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_counterfactuals_source_image_id"))
        batch_op.drop_index(batch_op.f("ix_counterfactuals_image_digest"))
        batch_op.drop_index("ix_counterfactuals_cell")

    op.drop_table("counterfactuals")
    with op.batch_alter_table("source_images", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_source_images_unfinished",
            sqlite_where=sa.text("state IN ('pending', 'leased')"),
            postgresql_where=sa.text("state IN ('pending', 'leased')"),
        )
        batch_op.drop_index(
            "ix_source_images_leased",
            sqlite_where=sa.text("state = 'leased'"),
            postgresql_where=sa.text("state = 'leased'"),
        )
        batch_op.drop_index(batch_op.f("ix_source_images_lease_token"))
        batch_op.drop_index("ix_source_images_job_id_digest")
        batch_op.drop_index(batch_op.f("ix_source_images_digest"))

    op.drop_table("source_images")
    op.drop_table("reports")
    op.drop_table("events")
    op.drop_table("uploads")
    with op.batch_alter_table("recorded_calls", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_recorded_calls_owner_id"))

    op.drop_table("recorded_calls")
    with op.batch_alter_table("owned_images", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_owned_images_digest"))

    op.drop_table("owned_images")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_jobs_running", sqlite_where=sa.text("state = 'running'"), postgresql_where=sa.text("state = 'running'")
        )
        batch_op.drop_index("ix_jobs_owner_id_created_at_id")
        batch_op.drop_index(batch_op.f("ix_jobs_lease_token"))

    op.drop_table("jobs")
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_api_keys_owner_id"))

    op.drop_table("api_keys")
    op.drop_table("owners")
    op.drop_table("images")
