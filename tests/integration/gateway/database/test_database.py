"""The schema and the database's clock, on SQLite and Postgres."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import func, inspect, make_url, select, text
from sqlalchemy.exc import IntegrityError, StatementError, TimeoutError

from gateway.database.events import add_event
from gateway.database.sessions import Sessions, database_now, migrate, migration_config, open_engine, reading
from gateway.database.tables import Event, Job, Owner, SourceImage, Table
from tests.support.rows import add_job
from tests.support.threads import run_together


@pytest.mark.slow
def test_migrations_make_exactly_the_tables(sessions: Sessions) -> None:
    with sessions.kw["bind"].connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []


def test_a_process_opens_no_more_connections_than_it_may(postgres_url: str) -> None:
    count = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'")
    url = make_url(postgres_url).update_query_dict({"application_name": "bounded"})
    engine = open_engine(url.render_as_string(hide_password=False), connections=3)
    engine.pool._timeout = 0.2  # type: ignore[attr-defined]  # 30 seconds by default
    with ExitStack() as stack:
        connections = [stack.enter_context(engine.connect()) for _ in range(3)]
        assert connections[0].scalar(count) == 3
        with pytest.raises(TimeoutError):
            engine.connect()
    with engine.connect() as connection:
        assert connection.scalar(count) == 3, "fewer than are kept while they are idle"
    engine.dispose()


def test_migrating_twice_changes_nothing(sessions: Sessions) -> None:
    migrate(sessions.kw["bind"])


def test_migrations_go_down_to_nothing_and_up_again_revision_by_revision(sessions: Sessions) -> None:
    engine = sessions.kw["bind"]
    with engine.begin() as connection:
        revisions = list(ScriptDirectory.from_config(migration_config(connection)).walk_revisions())
    assert len({revision.down_revision for revision in revisions}) == len(revisions), "one line, without branches"
    for revision in revisions:
        with engine.begin() as connection:
            assert MigrationContext.configure(connection).get_current_revision() == revision.revision
            command.downgrade(migration_config(connection), str(revision.down_revision or "base"))
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    for revision in reversed(revisions):
        with engine.begin() as connection:
            command.upgrade(migration_config(connection), revision.revision)
    test_migrations_make_exactly_the_tables(sessions)


def test_times_come_back_as_utc(sessions: Sessions) -> None:
    moment = datetime(2026, 11, 20, 13, 0, 0, 123456, tzinfo=UTC)
    with sessions.begin() as session:
        session.add(Owner(id="o", name="o", created_at=moment.astimezone(None)))
    with sessions() as session:
        assert session.scalars(select(Owner.created_at)).one() == moment
    with sessions() as session, pytest.raises(StatementError, match="has no time zone"):
        session.scalars(select(Owner).where(Owner.created_at == datetime(2026, 1, 1))).all()


def test_the_database_clock_adds_seconds_and_compares_with_stored_times(sessions: Sessions) -> None:
    with sessions() as session:
        now, later, earlier = session.execute(
            select(database_now(), database_now(6_000.5), database_now(-500.25))
        ).one()
    busy = timedelta(seconds=60)  # what a busy machine may take between two looks at a clock
    assert abs(now - datetime.now(UTC)) < busy
    assert abs(later - now - timedelta(seconds=6_000.5)) < busy
    assert abs(now - earlier - timedelta(seconds=500.25)) < busy


def test_a_read_only_session_sees_one_snapshot(sessions: Sessions) -> None:
    add_job(sessions, "j", images=1)
    images = select(func.count()).select_from(SourceImage)
    with reading(sessions) as session:
        assert session.scalar(images) == 1
        add_job(sessions, "k", images=2)
        assert session.scalar(images) == 1
    with reading(sessions) as session:
        assert session.scalar(images) == 3


def test_deleting_a_job_removes_what_hangs_on_it(sessions: Sessions) -> None:
    add_job(sessions, "j", images=3)
    with sessions.begin() as session:
        add_event(session, "j", "job", {"state": "running"})
    with sessions.begin() as session:
        session.delete(session.get_one(Job, "j"))
    with sessions() as session:
        assert session.scalars(select(SourceImage)).all() == []
        assert session.scalars(select(Event)).all() == []


def test_events_are_numbered_without_gaps_in_commit_order(sessions: Sessions) -> None:
    add_job(sessions, "j", images=1)

    def append() -> None:
        for _ in range(10):
            with sessions.begin() as session:
                add_event(session, "j", "image", {})

    run_together(*[append] * 4)
    with sessions() as session:
        assert session.scalars(select(Event.sequence).order_by(Event.sequence)).all() == list(range(1, 41))


def test_states_outside_the_state_machine_are_refused(sessions: Sessions) -> None:
    add_job(sessions, "j", images=1)
    with pytest.raises(IntegrityError), sessions.begin() as session:
        session.get_one(SourceImage, "j-0").state = "leased"  # without a token
