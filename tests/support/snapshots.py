"""The rows and objects that some code stores, made once in a process and copied for each test that starts with them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.database.tables import Job
from shared.media.storage import DirectoryStore, ObjectStore
from tests.support.cpu_seconds import SHARED


@dataclass(frozen=True)
class Snapshot:
    """Rows by table, parents first, and objects by key."""

    rows: Sequence[tuple[Table, Sequence[Mapping[str, Any]]]]
    objects: Mapping[str, bytes]

    def restore(self, sessions: Sessions, store: ObjectStore) -> None:
        """Add the rows and objects to a migrated database and its store; those that are there already stay."""
        for key, data in self.objects.items():
            put_unsynced(store, key, data)
        with sessions.begin() as session:
            insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
            for table, rows in self.rows:
                session.execute(insert(table).on_conflict_do_nothing(), rows)


def put_unsynced(store: ObjectStore, key: str, data: bytes) -> None:
    """Store an object, without the wait of `put` for the disk where the store is a directory."""
    if isinstance(store, DirectoryStore):
        (path := store._path(key)).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    else:
        store.put(key, data)


def take_snapshot(fill: Callable[[Sessions, DirectoryStore], None]) -> Snapshot:
    """What `fill` stores in an empty database and an empty store."""
    with SHARED.measured(), tempfile.TemporaryDirectory(prefix="snapshot-") as directory:
        database = Path(directory) / "contrafact.db"
        database.write_bytes(migrated_bytes())
        engine = open_engine(f"sqlite:///{database}")
        sessions, store = open_sessions(engine), DirectoryStore(Path(directory) / "objects")
        try:
            fill(sessions, store)
            with sessions() as session:
                tables = Job.metadata.sorted_tables
                rows = [(table, [dict(row) for row in session.execute(select(table)).mappings()]) for table in tables]
        finally:
            engine.dispose()
        objects = {stored.key: store.get(stored.key) for stored in store.iterate()}
        return Snapshot([(table, values) for table, values in rows if values], objects)


@cache
def migrated_bytes() -> bytes:
    """A migrated, empty SQLite database: migrating takes longer than most tests."""
    with SHARED.measured(), tempfile.TemporaryDirectory(prefix="migrated-") as directory:
        database = Path(directory) / "contrafact.db"
        engine = open_engine(f"sqlite:///{database}")
        migrate(engine)
        engine.dispose()
        return database.read_bytes()
