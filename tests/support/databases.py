"""Databases of their own for tests, on the Postgres server that the fixture `postgres_url` starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, make_url, text

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For a test whose outcome does not depend on the database."""

_numbers = itertools.count()


@contextmanager
def postgres_database(server_url: str) -> Iterator[str]:
    """The URL of a fresh, migrated database on the server of `postgres_url`.

    It is dropped at once: removing hundreds of files each, on disk by then, took minutes after the last test.
    """
    name = f"test_{next(_numbers)}"
    execute(server_url, f"CREATE DATABASE {name} TEMPLATE template")
    yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    execute(server_url, f"DROP DATABASE {name} WITH (FORCE)")


def execute(url: str, statement: str) -> None:
    """Run one statement outside any transaction."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()
