"""Alembic's entry: runs revisions on the connection that `gateway.database.sessions.migration_config` carries."""

from __future__ import annotations

from alembic import context

from gateway.database.tables import Table

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Table.metadata,
    render_as_batch=True,
    compare_type=True,
    user_module_prefix="database.",
)
with context.begin_transaction():
    context.run_migrations()
