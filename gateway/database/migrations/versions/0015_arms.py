"""The verdicts on null arms, and sham arms. Edits from before have neither, so they count by their own verdict."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_NAME = "ck_counterfactuals_arm"
_TWO, _THREE = "arm IN ('edit', 'null')", "arm IN ('edit', 'null', 'sham')"


def upgrade() -> None:
    op.add_column("counterfactuals", sa.Column("null_check", sa.String(50), nullable=True))
    op.add_column("counterfactuals", sa.Column("sham_ordinal", sa.Integer(), nullable=True))
    op.add_column("counterfactuals", sa.Column("sham_check", sa.String(50), nullable=True))
    _constrain(_TWO, _THREE)


def downgrade() -> None:
    op.execute("DELETE FROM counterfactuals WHERE arm = 'sham'")
    _constrain(_THREE, _TWO)
    for column in ("sham_check", "sham_ordinal", "null_check"):
        op.drop_column("counterfactuals", column)


def _constrain(before: str, after: str) -> None:
    """Change the constraint on `arm`.

    SQLite changes no constraint, and a copy of the table in its place would take predictions and reviews along by their
    foreign keys. So the text of the schema is changed there (https://www.sqlite.org/lang_altertable.html, section 8).
    """
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint(op.f(_NAME), "counterfactuals", type_="check")
        op.create_check_constraint(op.f(_NAME), "counterfactuals", after)
        return
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    change = sa.text("UPDATE sqlite_master SET sql = replace(sql, :before, :after) WHERE name = 'counterfactuals'")
    connection.execute(change, {"before": before, "after": after})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
