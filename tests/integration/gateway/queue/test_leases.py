"""Leases on SQLite and Postgres: who works on which image, and what a dead worker costs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from gateway.database.sessions import Sessions, database_now
from gateway.database.tables import Chore, Event, SourceImage
from gateway.operations.housekeeping import is_due
from gateway.queue.leases import (
    Lease,
    claim,
    correct_times,
    fail,
    finish,
    live_tokens,
    record_lost,
    release,
    renew,
    sweep,
    work_waits,
)
from gateway.worker.worker import DatabaseClock
from tests.support.leases import LEASE, row, take, take_one
from tests.support.rows import add_job, let_time_pass
from tests.support.threads import run_together


def test_images_of_a_job_are_claimed_in_order_and_once(sessions: Sessions) -> None:
    add_job(sessions, "a", images=3)
    assert [take_one(sessions).id for _ in range(3)] == ["a-0", "a-1", "a-2"]
    assert take(sessions) is None


def test_an_earlier_turn_is_claimed_before_an_earlier_position(sessions: Sessions) -> None:
    add_job(sessions, "a", images=4)
    with sessions.begin() as session:
        for position, turn in enumerate((0, 2, 1, 3)):
            session.get_one(SourceImage, f"a-{position}").turn = turn
    assert [take_one(sessions).id for _ in range(4)] == ["a-0", "a-2", "a-1", "a-3"]


def test_the_job_with_the_fewest_live_leases_is_served_next(sessions: Sessions) -> None:
    add_job(sessions, "large", images=10, minute=0)
    assert [take_one(sessions).job_id for _ in range(4)] == ["large"] * 4
    add_job(sessions, "small", images=3, minute=1)
    assert [take_one(sessions).job_id for _ in range(4)] == ["small", "small", "small", "large"]


def test_racing_workers_never_hold_the_same_image(sessions: Sessions) -> None:
    add_job(sessions, "a", images=25)
    add_job(sessions, "b", images=25)
    claimed: list[str] = []

    def work() -> None:
        misses = 0
        while misses < 5:
            lease = take(sessions)
            if lease is None:
                misses += 1
            else:
                claimed.append(lease.id)

    run_together(*[work] * 6)
    assert len(claimed) == 50
    assert max(Counter(claimed).values()) == 1


def test_a_late_worker_changes_nothing(sessions: Sessions) -> None:
    add_job(sessions, "a", images=1)
    late = take_one(sessions)
    let_time_pass(sessions, LEASE + 1)
    with sessions.begin() as session:
        assert sweep(session, max_lost_leases=20) == 1
    current = take_one(sessions)
    assert current.id == late.id
    with sessions.begin() as session:
        assert not finish(session, late)
        assert not fail(session, late, "late", 1)
        assert not release(session, late, "late", 0)
        assert renew(session, [late, current], LEASE) == {current.token}
    with sessions.begin() as session:
        assert finish(session, current)
    assert row(sessions, "a-0").state == "done"
    assert row(sessions, "a-0").lost_leases == 1
    assert row(sessions, "a-0").attempts == 0


def test_a_clock_that_is_set_back_neither_delays_images_nor_keeps_dead_leases(sessions: Sessions) -> None:
    """Delays and leases lasted for as long again as the clock had gone wrong: years, from an empty battery to NTP."""
    add_job(sessions, "a", images=2)
    delayed, dead = take_one(sessions), take_one(sessions)
    with sessions.begin() as session:
        assert release(session, delayed, "service away", 5)
    years = timedelta(days=9000)
    with sessions.begin() as session:
        session.get_one(SourceImage, delayed.id).not_before = datetime.now(UTC) + years
        session.get_one(SourceImage, dead.id).lease_expires_at = datetime.now(UTC) + years
        session.add(Chore(name="housekeeping", begun_at=datetime.now(UTC) + years))
    elapsed = [0.0]
    clock = DatabaseClock(lambda: elapsed[0])
    with sessions.begin() as session:
        assert not clock.was_set_back(session)
        elapsed[0] += years.total_seconds()  # of which the database's clock knows nothing
        assert clock.was_set_back(session)
        correct_times(session, LEASE)
        assert not clock.was_set_back(session)
        assert is_due(session, 3600)
    assert take_one(sessions).id == delayed.id
    let_time_pass(sessions, LEASE + 1)
    with sessions.begin() as session:
        assert sweep(session, max_lost_leases=20) == 2


def test_a_renewed_lease_is_not_swept(sessions: Sessions) -> None:
    add_job(sessions, "a", images=2)
    renewed, silent = take_one(sessions), take_one(sessions)
    with sessions.begin() as session:
        renew(session, [renewed], 3 * LEASE)
    let_time_pass(sessions, 2 * LEASE)
    with sessions.begin() as session:
        assert sweep(session, 20) == 1
    assert [row(sessions, lease.id).state for lease in (renewed, silent)] == ["leased", "pending"]


def test_an_image_that_keeps_killing_workers_fails_with_a_reason(sessions: Sessions) -> None:
    add_job(sessions, "a", images=2)
    for _ in range(3):
        assert take_one(sessions).id == "a-0"
        let_time_pass(sessions, LEASE + 1)
        with sessions.begin() as session:
            sweep(session, max_lost_leases=3)
    assert row(sessions, "a-0").state == "failed"
    assert "3 workers stopped" in row(sessions, "a-0").failure
    with sessions() as session:
        (event,) = session.scalars(select(Event)).all()
    assert event.payload["position"] == 0
    assert take_one(sessions).id == "a-1"


def test_only_its_own_errors_count_as_attempts(sessions: Sessions) -> None:
    add_job(sessions, "a", images=1)
    for _ in range(5):
        lease = take_one(sessions)
        with sessions.begin() as session:
            assert release(session, lease, "the service is busy", delay=0)
    assert row(sessions, "a-0").attempts == 0
    for attempt in range(3):
        lease = take_one(sessions)
        with sessions.begin() as session:
            assert fail(session, lease, f"broken {attempt}", max_attempts=3, delay=0)
    image = row(sessions, "a-0")
    assert (image.state, image.attempts, image.failure) == ("failed", 3, "broken 2")


def test_a_released_image_waits_for_its_delay(sessions: Sessions) -> None:
    add_job(sessions, "a", images=1)
    with sessions.begin() as session:
        lease = claim(session, LEASE)
        assert lease is not None
        release(session, lease, "busy", delay=LEASE)
    assert take(sessions) is None
    with sessions.begin() as session:
        assert not work_waits(session)
        image = session.get_one(SourceImage, "a-0")
        now = session.scalar(select(database_now()))
        assert image.not_before is not None
        assert now is not None
        assert LEASE - 30 < (image.not_before - now).total_seconds() <= LEASE
        image.not_before = now  # as if the time had passed
    with sessions() as session:
        assert work_waits(session)
    assert take(sessions) is not None


def test_leases_of_finished_images_are_no_longer_held(sessions: Sessions) -> None:
    add_job(sessions, "a", images=2)
    first, second = take_one(sessions), take_one(sessions)
    with sessions.begin() as session:
        assert finish(session, first)
    with sessions() as session:
        assert live_tokens(session, [first, second]) == {second.token}
        assert live_tokens(session, []) == set()


@pytest.mark.slow
def test_failures_of_unknown_cause_wait_twice_as_long_each_time(sessions: Sessions) -> None:
    add_job(sessions, "a", images=1)
    waits = []
    for _ in range(4):
        lease = take_one(sessions)
        with sessions.begin() as session:
            assert record_lost(session, lease, "broke off", max_lost_leases=20, delay=100)
        with sessions.begin() as session:
            image = session.get_one(SourceImage, "a-0")
            now = session.scalar(select(database_now()))
            assert image.not_before is not None
            assert now is not None
            waits.append((image.not_before - now).total_seconds())
            image.not_before = None
    assert all(0.8 * full < wait <= full for wait, full in zip(waits, (100, 200, 400, 800), strict=True)), waits
    assert row(sessions, "a-0").lost_leases == 4


def test_a_small_job_behind_a_large_one_finishes_long_before_it(sessions: Sessions) -> None:
    """Eight images in flight, each taking one turn; the ratio is of turns from a job's start to its last image."""
    large, small, in_flight = 1_000, 10, 8
    add_job(sessions, "large", images=large, minute=0)
    in_progress: list[Lease] = []
    ended: Counter[str] = Counter()
    last: dict[str, int] = {}
    turns = 0

    def turn() -> None:
        nonlocal turns
        with sessions.begin() as session:
            for lease in in_progress:
                assert finish(session, lease)
                ended[lease.job_id] += 1
                last[lease.job_id] = turns
        with sessions.begin() as session:
            claimed = [claim(session, LEASE) for _ in range(in_flight)]
            in_progress[:] = [lease for lease in claimed if lease is not None]
        turns += 1

    for _ in range(5):  # the large job has every place before the small one comes
        turn()
    add_job(sessions, "small", images=small, minute=1)
    begun = turns
    while in_progress:
        turn()
    assert ended == {"large": large, "small": small}
    waited, alone = last["small"] - begun, -(-small // in_flight)
    ratio = last["large"] / waited
    print(f"{small} images behind {large}: done in {waited} turns ({alone} if alone), {ratio:.0f} times faster")
    assert waited <= 2 * alone + 1
    assert ratio > 20
