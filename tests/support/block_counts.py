"""What a query touches in Postgres."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions


def blocks(sessions: Sessions, work: Callable[[Session], object]) -> int:
    """Blocks of 8 KiB that the statements of `work` touch in Postgres, in cache or not; what they write is undone."""
    issued: list[tuple[str, Any]] = []

    def note(_: Connection, __: Any, statement: str, parameters: Any, *_arguments: Any) -> None:
        issued.append((statement, parameters))

    engine = sessions.kw["bind"]
    event.listen(engine, "before_cursor_execute", note)
    with sessions() as session:
        work(session)
        session.rollback()
    event.remove(engine, "before_cursor_execute", note)
    total = 0
    with engine.connect() as connection:
        for statement, parameters in issued:
            explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters)
            plan = explained.scalar_one()[0]["Plan"]
            total += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        connection.rollback()
    return total
