"""The schema and the database's clock, on SQLite and Postgres."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import func, inspect, make_url, select, text, update
from sqlalchemy.exc import IntegrityError, StatementError, TimeoutError

from gateway.database.columns import SourceImageState
from gateway.database.counts import count_rows
from gateway.database.events import add_event
from gateway.database.sessions import Sessions, database_now, migrate, migration_config, open_engine, reading
from gateway.database.tables import Counterfactual, Event, Job, Owner, Prediction, SourceImage, Table, Upload
from tests.support.rows import add_job
from tests.support.threads import run_together
from tests.support.worked_jobs import EDITS, add_worked_job


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


def test_migrating_with_rows_keeps_them(sessions: Sessions) -> None:
    add_job(sessions, "j", images=2)
    engine = sessions.kw["bind"]
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "0001")
    migrate(engine)
    with sessions() as session:
        assert [image.state for image in session.get_one(Job, "j").source_images] == ["pending"] * 2


def test_migrating_counts_the_images_and_edits_of_jobs(sessions: Sessions) -> None:
    add_job(sessions, "empty", images=0)
    add_job(sessions, "j", images=6)
    states: tuple[SourceImageState, ...] = ("done", "done", "failed", "pending", "cancelled", "pending")
    with sessions.begin() as session:
        for image, state in zip(session.get_one(Job, "j").source_images, states, strict=True):
            image.state, image.ground_truth = state, "car" if state == "done" else None
        fates = [("edit", "", True), ("edit", "label", True), ("edit", "no change", False), ("null", "", True)]
        for ordinal, (arm, check, rendered) in enumerate(fates * 2):
            session.add(
                Counterfactual(
                    id=f"c{ordinal}", job_id="j", source_image_id="j-0", position=0, method="shifts", ordinal=ordinal,
                    arm=arm, seed=0, check=check, accepted=not check, image_digest="0" * 64 if rendered else None,
                )
            )  # fmt: skip
        expected = count_rows(session, "j")
    engine = sessions.kw["bind"]
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "0011")
    migrate(engine)
    with sessions() as session:
        assert session.get_one(Job, "j").counts == expected == {
            "images": 6, "labelled": 2, "done": 2, "failed": 1, "cancelled": 1, "shifts/proposed": 6,
            "shifts/rendered": 4, "shifts/accepted": 2, "shifts/rejected/label": 2, "shifts/rejected/no change": 2,
            "shifts/null": 2,
        }  # fmt: skip
        assert session.get_one(Job, "empty").counts == {}


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


def test_migrating_forgets_which_image_a_file_gave(sessions: Sessions) -> None:
    """Before 0018, files with a colour profile gave other pixels. Their images, and the jobs that use them, stay."""
    add_job(sessions, "j", images=1)
    engine = sessions.kw["bind"]
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "0017")
    with sessions.begin() as session:
        image = session.get_one(SourceImage, "j-0")
        digest, owner = str(image.digest), image.job.owner_id
        session.add(Upload(owner_id=owner, original_digest="f" * 64, digest=digest))
    migrate(engine)
    with sessions() as session:
        assert session.scalars(select(Upload)).all() == []
        assert session.get_one(SourceImage, "j-0").digest == digest


def test_sham_arms_may_be_stored_after_a_migration_that_keeps_predictions(sessions: Sessions) -> None:
    add_worked_job(sessions, "job", 2)
    engine = sessions.kw["bind"]
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "0014")
    migrate(engine)
    edits = update(Counterfactual).where(Counterfactual.id == "job-0-0")
    with sessions.begin() as session:
        assert session.scalar(select(func.count()).select_from(Prediction)) == 2 * (1 + EDITS + 1)
        assert session.scalars(select(Counterfactual.counted)).all() == [True] * 2 * (EDITS + 1)
        session.execute(edits.values(arm="sham"))
    with pytest.raises(IntegrityError), sessions.begin() as session:
        session.execute(edits.values(arm="placebo"))
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "0014")
        left = connection.execute(text("SELECT count(*) FROM counterfactuals")).scalar_one()
    assert left == 2 * (EDITS + 1) - 1, "a schema without sham arms keeps none"
    migrate(engine)
