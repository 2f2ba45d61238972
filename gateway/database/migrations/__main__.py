"""`python -m gateway.database.migrations [revise MESSAGE]`: upgrade CONTRAFACT_DATABASE_URL, or draft a revision."""

from __future__ import annotations

import sys

from alembic import command

from gateway.database.sessions import migrate, migration_config, open_engine
from gateway.settings import Settings


def main(arguments: list[str]) -> None:
    """Without arguments, upgrade; `revise MESSAGE` drafts a revision: the difference to `gateway.database.tables`."""
    engine = open_engine(Settings().database_url)
    if not arguments:
        migrate(engine)
        return
    if len(arguments) != 2 or arguments[0] != "revise":
        raise SystemExit("usage: python -m gateway.database.migrations [revise MESSAGE]")
    with engine.begin() as connection:
        command.revision(migration_config(connection), message=arguments[1], autogenerate=True)


main(sys.argv[1:])
