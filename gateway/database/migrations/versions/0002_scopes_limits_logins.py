"""Scopes and limits of API keys, logins of browsers, and which request made a job.

No batches: on SQLite they would rebuild `jobs`, and dropping the old table would cascade to all that hangs on it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database import sessions

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    # Keys of before could do everything that there was.
    op.add_column("api_keys", sa.Column("scopes", _JSON, nullable=False, server_default='["submit", "review"]'))
    op.add_column("api_keys", sa.Column("requests_per_minute", sa.Integer(), nullable=True))
    op.add_column("api_keys", sa.Column("bytes_per_hour", sa.BigInteger(), nullable=True))
    op.add_column("api_keys", sa.Column("max_request_bytes", sa.BigInteger(), nullable=True))
    op.add_column("api_keys", sa.Column("requests_until", sa.Double(), nullable=False, server_default="0"))
    op.add_column("api_keys", sa.Column("bytes_until", sa.Double(), nullable=False, server_default="0"))
    op.add_column("api_keys", sa.Column("used_at", sessions.UtcDateTime(), nullable=True))
    op.add_column("jobs", sa.Column("request_id", sa.String(length=64), nullable=False, server_default=""))
    op.create_table(
        "logins",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("key_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sessions.UtcDateTime(), nullable=False),
        sa.Column("expires_at", sessions.UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["key_hash"], ["api_keys.hash"], name=op.f("fk_logins_key_hash"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_logins")),
    )
    op.create_index(op.f("ix_logins_key_hash"), "logins", ["key_hash"], unique=False)


def downgrade() -> None:
    op.drop_table("logins")
    op.drop_column("jobs", "request_id")
    for name in (
        "used_at", "bytes_until", "requests_until", "max_request_bytes", "bytes_per_hour", "requests_per_minute",
        "scopes",
    ):  # fmt: skip
        op.drop_column("api_keys", name)
