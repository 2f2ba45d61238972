"""Checks of the gateway's and the worker's probes, which `shared.probes` serves."""

from __future__ import annotations

from sqlalchemy import select

from gateway.auth.middleware import no_database
from gateway.context import Context
from gateway.database.sessions import DATABASE_AWAY, Sessions, reading
from shared.problems import NotReady


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
