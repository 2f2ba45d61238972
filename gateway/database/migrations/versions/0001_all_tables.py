"""All tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database.sessions import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "chores",
        sa.Column("name", sa.String(length=50), primary_key=True),
        sa.Column("begun_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "images",
        sa.Column("digest", sa.String(length=64), primary_key=True),
        sa.Column("mode", sa.String(length=4), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("unreferenced_since", UtcDateTime()),
    )
    op.create_index("ix_images_unreferenced_since", "images", ["unreferenced_since"])
    op.create_table(
        "owners",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("hash", sa.String(length=64), primary_key=True),
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("scopes", _JSON, nullable=False),
        sa.Column("requests_per_minute", sa.Integer()),
        sa.Column("bytes_per_hour", sa.BigInteger()),
        sa.Column("max_request_bytes", sa.BigInteger()),
        sa.Column("requests_until", sa.Double(), nullable=False),
        sa.Column("bytes_until", sa.Double(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime()),
        sa.Column("revoked_at", UtcDateTime()),
    )
    op.create_index("ix_api_keys_owner_id", "api_keys", ["owner_id"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("report_due", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), server_default="classification", nullable=False),
        sa.Column("classes", _JSON, nullable=False),
        sa.Column("methods", _JSON, nullable=False),
        sa.Column("models", _JSON, nullable=False),
        sa.Column("uploaded_models", _JSON, nullable=False),
        sa.Column("profile", sa.String(length=200), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("idempotency_key", sa.String(length=200)),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("purpose", sa.String(length=16), server_default="test", nullable=False),
        sa.Column("parent_id", sa.String(length=64)),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("counts", _JSON, server_default="{}", nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime()),
        sa.Column("deleted_at", UtcDateTime()),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.String(length=64)),
        sa.Column("lease_expires_at", UtcDateTime()),
        sa.Column("not_before", UtcDateTime()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lost_leases", sa.Integer(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'done', 'failed', 'cancelled')", name="state"),
        sa.UniqueConstraint("owner_id", "idempotency_key"),
    )
    op.create_index("ix_jobs_lease_token", "jobs", ["lease_token"])
    op.create_index("ix_jobs_owner_id_created_at_id", "jobs", ["owner_id", "created_at", "id"])
    op.create_index(
        "ix_jobs_report_due",
        "jobs",
        ["id"],
        sqlite_where=sa.text("report_due = 1"),
        postgresql_where=sa.text("report_due"),
    )
    op.create_index(
        "ix_jobs_running",
        "jobs",
        ["id"],
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index("ix_jobs_parent_id", "jobs", ["parent_id"])
    op.create_table(
        "models_under_test",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("format", sa.String(length=20), nullable=False),
        sa.Column("task", sa.String(length=20), nullable=False),
        sa.Column("classes", _JSON, nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("licence", sa.String(length=200), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.UniqueConstraint("owner_id", "name"),
    )
    op.create_index("ix_models_under_test_digest", "models_under_test", ["owner_id", "digest"])
    op.create_table(
        "owned_images",
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("digest", sa.String(length=64), sa.ForeignKey("images.digest"), primary_key=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_owned_images_digest", "owned_images", ["digest"])
    op.create_table(
        "recorded_calls",
        sa.Column("key", sa.String(length=64), primary_key=True),
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), nullable=False),
        sa.Column("endpoint", sa.String(length=50), nullable=False),
        sa.Column("source_digest", sa.String(length=64)),
        sa.Column("revision", sa.String(length=200), nullable=False),
        sa.Column("reply", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_recorded_calls_owner_id", "recorded_calls", ["owner_id"])
    op.create_table(
        "suites",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("made_from", sa.String(length=64), nullable=False),
        sa.Column("filters", _JSON, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.UniqueConstraint("owner_id", "name"),
    )
    op.create_table(
        "uploads",
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("original_digest", sa.String(length=64), primary_key=True),
        sa.Column("digest", sa.String(length=64), sa.ForeignKey("images.digest"), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_uploads_digest", "uploads", ["digest"])
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sequence", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("payload", _JSON, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "job_backgrounds",
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("digest", sa.String(length=64), sa.ForeignKey("images.digest"), primary_key=True),
    )
    op.create_index("ix_job_backgrounds_digest", "job_backgrounds", ["digest"])
    op.create_table(
        "job_rounds",
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer(), autoincrement=False, primary_key=True),
        sa.Column("plan", _JSON, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "job_services",
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("service", sa.String(length=50), primary_key=True),
        sa.Column("revision", sa.String(length=200), primary_key=True),
        sa.Column("info", _JSON, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "logins",
        sa.Column("hash", sa.String(length=64), primary_key=True),
        sa.Column("key_hash", sa.String(length=64), sa.ForeignKey("api_keys.hash", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_logins_key_hash", "logins", ["key_hash"])
    op.create_table(
        "repairs",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("owner_id", sa.String(length=64), sa.ForeignKey("owners.id", ondelete="CASCADE"), nullable=False),
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("progress", _JSON, nullable=False),
        sa.Column("result", _JSON),
        sa.Column("token", sa.String(length=64)),
        sa.Column("beat", sa.Integer(), nullable=False),
        sa.Column("heard_at", UtcDateTime()),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime()),
        sa.CheckConstraint("state IN ('running', 'done', 'failed', 'cancelled')", name="state"),
    )
    op.create_index("ix_repairs_job_id", "repairs", ["job_id"])
    op.create_index("ix_repairs_owner_id_created_at_id", "repairs", ["owner_id", "created_at", "id"])
    op.create_index("ix_repairs_state", "repairs", ["state"])
    op.create_table(
        "reports",
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("object_key", sa.String(length=300), nullable=False),
        sa.Column("metrics", _JSON, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "source_images",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), sa.ForeignKey("images.digest")),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("ground_truth", sa.Text()),
        sa.Column("mask_digest", sa.String(length=64), sa.ForeignKey("images.digest")),
        sa.Column("mask_classes", _JSON),
        sa.Column("boxes", _JSON),
        sa.Column("questions", _JSON),
        sa.Column("object_digest", sa.String(length=64), sa.ForeignKey("images.digest")),
        sa.Column("group_name", sa.Text()),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("generated", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16)),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.String(length=64)),
        sa.Column("lease_expires_at", UtcDateTime()),
        sa.Column("not_before", UtcDateTime()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lost_leases", sa.Integer(), nullable=False),
        sa.CheckConstraint("(state = 'leased') = (lease_token IS NOT NULL)", name="lease"),
        sa.CheckConstraint("state IN ('pending', 'leased', 'done', 'failed', 'cancelled')", name="state"),
        sa.UniqueConstraint("job_id", "position"),
    )
    op.create_index("ix_source_images_digest", "source_images", ["digest"])
    op.create_index("ix_source_images_job_id_digest", "source_images", ["job_id", "digest"])
    op.create_index("ix_source_images_job_id_state", "source_images", ["job_id", "state", "position"])
    op.create_index("ix_source_images_job_id_updated_at", "source_images", ["job_id", "updated_at"])
    op.create_index("ix_source_images_lease_token", "source_images", ["lease_token"])
    op.create_index(
        "ix_source_images_leased",
        "source_images",
        ["job_id", "lease_expires_at"],
        sqlite_where=sa.text("state = 'leased'"),
        postgresql_where=sa.text("state = 'leased'"),
    )
    op.create_index("ix_source_images_mask_digest", "source_images", ["mask_digest"])
    op.create_index("ix_source_images_object_digest", "source_images", ["object_digest"])
    op.create_index(
        "ix_source_images_unfinished",
        "source_images",
        ["job_id", "turn", "position"],
        sqlite_where=sa.text("state IN ('pending', 'leased')"),
        postgresql_where=sa.text("state IN ('pending', 'leased')"),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_index("ix_studies_job_id", "studies", ["job_id"])
    op.create_table(
        "counterfactuals",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column(
            "source_image_id",
            sa.String(length=64),
            sa.ForeignKey("source_images.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=50), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("arm", sa.String(length=8), nullable=False),
        sa.Column("null_ordinal", sa.Integer()),
        sa.Column("null_check", sa.String(length=50)),
        sa.Column("sham_ordinal", sa.Integer()),
        sa.Column("sham_check", sa.String(length=50)),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("changes", _JSON, nullable=False),
        sa.Column("factor", sa.String(length=20)),
        sa.Column("from_value", sa.Text()),
        sa.Column("to_value", sa.Text()),
        sa.Column("caption", sa.Text(), nullable=False),
        sa.Column("new_caption", sa.Text(), nullable=False),
        sa.Column("image_digest", sa.String(length=64), sa.ForeignKey("images.digest")),
        sa.Column("control_digest", sa.String(length=64), sa.ForeignKey("images.digest")),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("check", sa.String(length=50), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("scores", _JSON, nullable=False),
        sa.Column("lineage", _JSON, nullable=False),
        sa.CheckConstraint("arm IN ('edit', 'null', 'sham')", name="arm"),
        sa.UniqueConstraint("job_id", "position", "method", "ordinal"),
    )
    op.create_index("ix_counterfactuals_cell", "counterfactuals", ["job_id", "method", "factor", "to_value"])
    op.create_index("ix_counterfactuals_control_digest", "counterfactuals", ["control_digest"])
    op.create_index("ix_counterfactuals_funnel", "counterfactuals", ["job_id", "method", "arm", "check"])
    op.create_index("ix_counterfactuals_image_digest", "counterfactuals", ["image_digest"])
    op.create_index("ix_counterfactuals_source_image_id", "counterfactuals", ["source_image_id"])
    op.create_table(
        "study_raters",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("study_id", sa.String(length=64), sa.ForeignKey("studies.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("token_hash", sa.String(length=64)),
        sa.Column("items", _JSON, nullable=False),
        sa.Column("requests_until", sa.Double(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.UniqueConstraint("study_id", "name"),
        sa.UniqueConstraint("token_hash"),
    )
    op.create_table(
        "predictions",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column(
            "source_image_id",
            sa.String(length=64),
            sa.ForeignKey("source_images.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("counterfactual_id", sa.String(length=64), sa.ForeignKey("counterfactuals.id", ondelete="CASCADE")),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("predicted", sa.Text(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("flipped", sa.Boolean()),
        sa.Column("scores", _JSON, nullable=False),
        sa.Column("detail", _JSON, nullable=False),
        sa.Column("image_digest", sa.String(length=64), sa.ForeignKey("images.digest")),
    )
    op.create_index("ix_predictions_counterfactual_id", "predictions", ["counterfactual_id"])
    op.create_index("ix_predictions_image_digest", "predictions", ["image_digest"])
    op.create_index("ix_predictions_job_id_model", "predictions", ["job_id", "model"])
    op.create_index("ix_predictions_source_image_id", "predictions", ["source_image_id"])
    op.create_table(
        "study_items",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("study_id", sa.String(length=64), sa.ForeignKey("studies.id", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column(
            "counterfactual_id",
            sa.String(length=64),
            sa.ForeignKey("counterfactuals.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("shown_digest", sa.String(length=64), sa.ForeignKey("images.digest"), nullable=False),
        sa.CheckConstraint("kind IN ('edit', 'null', 'broken', 'attention')", name="kind"),
    )
    op.create_index("ix_study_items_counterfactual_id", "study_items", ["counterfactual_id"])
    op.create_index("ix_study_items_shown_digest", "study_items", ["shown_digest"])
    op.create_index("ix_study_items_study_id", "study_items", ["study_id"])
    op.create_table(
        "answers",
        sa.Column("job_id", sa.String(length=64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("kind", sa.String(length=16), primary_key=True),
        sa.Column("item", sa.String(length=64), primary_key=True),
        sa.Column("author", sa.String(length=64), primary_key=True),
        sa.Column("study_id", sa.String(length=64), sa.ForeignKey("studies.id", ondelete="CASCADE")),
        sa.Column("content", _JSON, nullable=False),
        sa.Column("answered_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('review', 'mark', 'note', 'rating')", name="kind"),
    )
    op.create_index("ix_answers_study_id", "answers", ["study_id"])
    op.create_index(
        "ix_answers_job_id_kind_answered_at", "answers", ["job_id", "kind", "answered_at", "item", "author"]
    )


def downgrade() -> None:
    for table in (
        "answers",
        "study_items",
        "predictions",
        "study_raters",
        "counterfactuals",
        "studies",
        "source_images",
        "reports",
        "repairs",
        "logins",
        "job_services",
        "job_rounds",
        "job_backgrounds",
        "events",
        "uploads",
        "suites",
        "recorded_calls",
        "owned_images",
        "models_under_test",
        "jobs",
        "api_keys",
        "owners",
        "images",
        "chores",
    ):
        op.drop_table(table)
