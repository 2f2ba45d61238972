"""`python -m gateway.migrations [revise MESSAGE]`: bring CONTRAFACT_DATABASE_URL up to date, or draft a revision."""

from __future__ import annotations

import sys

from alembic import command

from gateway.database import migrate, migration_config, open_engine
from gateway.settings import Settings


def main(arguments: list[str]) -> None:
    """Without arguments, upgrade; `revise MESSAGE` drafts a revision from the difference to `gateway.tables`."""
    engine = open_engine(Settings().database_url)
    if not arguments:
        migrate(engine)
        return
    if len(arguments) != 2 or arguments[0] != "revise":
        raise SystemExit("usage: python -m gateway.migrations [revise MESSAGE]")
    with engine.begin() as connection:
        command.revision(migration_config(connection), message=arguments[1], autogenerate=True)


main(sys.argv[1:])
