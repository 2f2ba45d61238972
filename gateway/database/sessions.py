"""Engine, sessions and the database's clock, for SQLite (embedded) and Postgres (deployed)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from pydantic_core import from_json
from sqlalchemy import (
    BindParameter,
    Connection,
    DateTime,
    Dialect,
    Engine,
    TypeDecorator,
    create_engine,
    event,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError, TimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from gateway.settings import DATABASE_CONNECTIONS

Sessions = sessionmaker[Session]
ColumnValues = Mapping[str, object]  # values of a row by column, of any table

SQLITE_BUSY_MILLISECONDS = 30_000
KEPT_CONNECTIONS = 16
DATABASE_AWAY = (OperationalError, InterfaceError, TimeoutError)  # what is raised while the database is unreachable

_READ_ONLY = "contrafact_read_only"
_MIGRATING = 7_242_606_411  # arbitrary number of our advisory lock on Postgres


def driver_message(error: SQLAlchemyError) -> str:
    """The message of the database's driver, without the statement; SQLAlchemy's own, for example of a full pool."""
    return str(error.orig if isinstance(error, DBAPIError) else error)


class UtcDateTime(TypeDecorator[datetime]):
    """A point in time, as aware UTC on every database. Refuses naive datetimes."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; use datetime.now(UTC)")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def open_engine(url: str, connections: int = DATABASE_CONNECTIONS) -> Engine:
    """An engine for a `sqlite:///…` or `postgresql+psycopg://…` URL. Connects on first use.

    It opens up to `connections` to Postgres, and keeps up to `KEPT_CONNECTIONS` idle ones open.

    SQLite runs with write-ahead log, foreign keys, and transactions that take the write lock at once: otherwise two
    transactions that read first and write later would fail with "database is locked" at any timeout.
    """
    if make_url(url).get_backend_name() == "sqlite":
        engine = create_engine(url, pool_size=16, max_overflow=48, json_deserializer=from_json)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_immediate)
        return engine
    pool_size = min(connections, KEPT_CONNECTIONS)
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=connections - pool_size,
        pool_pre_ping=True,
        json_deserializer=from_json,  # of a large job, the time of a report is that of its JSON
    )


def open_sessions(engine: Engine) -> Sessions:
    """`with sessions.begin() as session:` is one transaction; rows stay readable after the commit."""
    return sessionmaker(engine, expire_on_commit=False)


@contextmanager
def reading(sessions: Sessions) -> Iterator[Session]:
    """A read-only session on one snapshot. On SQLite it takes no write lock, so long reads block no writer.

    On Postgres it is REPEATABLE READ: at the default level, each statement has a snapshot of its own.
    """
    with sessions() as session:
        on_postgres = session.get_bind().dialect.name == "postgresql"
        isolation = {"isolation_level": "REPEATABLE READ"} if on_postgres else {}
        session.connection(execution_options={_READ_ONLY: True, **isolation})
        yield session


def insert_missing(session: Session, table: type[DeclarativeBase], rows: Sequence[ColumnValues]) -> None:
    """Insert rows whose primary key is new. Pass them sorted by key, so that concurrent writers do not deadlock."""
    if not rows:
        return
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    session.execute(insert(table).on_conflict_do_nothing(), list(rows))


def upsert(
    session: Session, table: type[DeclarativeBase], key: ColumnValues, columns: ColumnValues, **if_new: object
) -> None:
    """Write `columns` of the row with this primary key. A new row has the columns `if_new` as well."""
    insert_missing(session, table, [{**key, **if_new, **columns}])
    session.execute(update(table).filter_by(**key).values(**columns))


def migrate(engine: Engine) -> None:
    """Upgrade the schema to the newest revision (`alembic upgrade head`). Safe to run in several processes at once."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite's transactions exclude one another anyway
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATING)))
        command.upgrade(migration_config(connection), "head")


def migration_config(connection: Connection) -> Config:
    """Alembic's configuration for our revisions, inside the connection's transaction."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


class database_now(GenericFunction[Any]):
    """SQL: the database's clock, plus a number of seconds: `database_now()`, `database_now(60)`, `database_now(-5)`."""

    type = UtcDateTime()
    inherit_cache = True

    def __init__(self, seconds: float | BindParameter[float] = 0.0) -> None:
        super().__init__(seconds if isinstance(seconds, BindParameter) else float(seconds))


@compiles(database_now, "postgresql")
def _now_postgresql(element: database_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    return f"(statement_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kwargs)}))"


@compiles(database_now, "sqlite")
def _now_sqlite(element: database_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    seconds = compiler.process(element.clauses, **kwargs)
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds') || '000')"  # as SQLAlchemy stores times


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's "begin" event below opens transactions, not the driver
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={SQLITE_BUSY_MILLISECONDS}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_immediate(connection: Connection) -> None:
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
