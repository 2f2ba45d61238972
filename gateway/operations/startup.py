"""Checks before a process starts to serve. It refuses to start with unsafe settings or a wrong schema.

Checks of the gateway's and the worker's probes, which `shared.service.probes` serves.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, select
from sqlalchemy.engine import make_url

from gateway.auth.keys import any_key
from gateway.auth.middleware import no_database
from gateway.context import Context
from gateway.database.sessions import DATABASE_AWAY, Sessions, driver_message, migration_config, reading
from gateway.settings import Settings
from shared.problems import NotReady


def refuse_unsafe_start(settings: Settings, sessions: Sessions) -> None:
    """Raises SystemExit, with a sentence that says what to do, if it is unsafe to serve."""
    if settings.deployed and not settings.authentication:
        raise SystemExit(
            "CONTRAFACT_BROKER_URL names a server, so this is a deployment, and anybody could use it: "
            "set CONTRAFACT_AUTHENTICATION=true, and create a key with `contrafact keys create NAME`"
        )
    refuse_wrong_schema(settings, sessions)
    with reading(sessions) as session:
        if settings.authentication and not any_key(session):
            raise SystemExit("there is no API key yet, so nobody could log in: run `contrafact keys create NAME` first")


def refuse_wrong_schema(settings: Settings, sessions: Sessions) -> None:
    """Raises SystemExit if the database is missing, does not answer or has another version's schema."""
    with sessions() as session:
        missing = missing_database(session.get_bind().engine.url)  # does not connect
    if missing:
        raise SystemExit(missing)
    try:
        with reading(sessions) as session:
            wrong = schema_fault(session.connection())
    except DATABASE_AWAY as error:
        raise SystemExit(f"{database_name(settings)} does not answer: {driver_message(error)}") from error
    if wrong:
        raise SystemExit(wrong)


def missing_database(url: URL) -> str | None:
    """A sentence if the database is a file that does not exist; else None. Reading would create an empty file."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    if Path(url.database).exists():
        return None
    return (
        f"there is no database {url.database}: set CONTRAFACT_DATABASE_URL; `python -m gateway.database.migrations` "
        "creates a new one, and `contrafact replay --directory DIR` takes that of `contrafact serve --directory DIR`"
    )


def schema_fault(connection: Connection) -> str | None:
    """The fault of the database's schema in a sentence; None if the schema fits this version."""
    newest = ScriptDirectory.from_config(migration_config(connection)).get_heads()
    current = MigrationContext.configure(connection).get_current_heads()
    if set(current) == set(newest):
        return None
    revision = ", ".join(current) or "none"
    return (
        f"the database's schema is at revision {revision}, and this version works with {', '.join(newest)}: "
        "run `python -m gateway.database.migrations` of this version, or go back to the database's version"
    )


def database_name(settings: Settings) -> str:
    """The database's URL for messages, without its password."""
    return f"the database {make_url(settings.database_url).render_as_string(hide_password=True)}"


@contextmanager
def stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """Set `stopping` at SIGTERM or SIGINT; the server's own shutdown hooks run too late for that.

    Earlier signal handlers still run. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def tell(number: int, frame: FrameType | None) -> None:
        stopping.set()
        earlier = before[signal.Signals(number)]
        if callable(earlier):
            earlier(number, frame)

    for number in before:
        signal.signal(number, tell)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def database_answers(sessions: Sessions) -> None:
    """Raises NotReady while the database does not answer."""
    try:
        with reading(sessions) as session:
            session.execute(select(1))
    except DATABASE_AWAY as error:
        raise no_database() from error


def refuse_unready(context: Context) -> None:
    """Raises NotReady while the gateway should not receive requests."""
    if context.stopping.is_set():
        raise NotReady("this gateway is stopping; send the request to another one")
    if context.broker_fault:
        raise NotReady(context.broker_fault)
    database_answers(context.sessions)
