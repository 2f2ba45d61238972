"""API keys, their limits and their logins, on SQLite and Postgres."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gateway.auth.keys import (
    Caller,
    KeyRefused,
    Limits,
    admit,
    create_key,
    hash_of,
    key_of_login,
    list_keys,
    revoke_key,
)
from gateway.auth.sessions import log_in, log_out
from gateway.database.sessions import Sessions, open_engine, open_sessions
from gateway.database.tables import ApiKey, Login
from shared.problems import Overloaded

DEFAULTS = Limits(requests_per_minute=600, bytes_per_hour=3_600_000)


def new_key(sessions: Sessions, **limits: int) -> str:
    with sessions.begin() as session:
        return create_key(session, "ann", limits=Limits(**limits))


def caller_of(sessions: Sessions, key: str, requests: int = 1, size: int = 0) -> Caller | None:
    with sessions.begin() as session:
        return admit(session, hash_of(key), DEFAULTS, requests, size)


def rewind(sessions: Sessions, seconds: float) -> None:
    """Let time pass for what the keys have booked."""
    with sessions.begin() as session:
        session.execute(
            update(ApiKey).values(
                requests_until=ApiKey.requests_until - seconds, bytes_until=ApiKey.bytes_until - seconds
            )
        )


def test_a_limit_refuses_until_there_is_room_again(sessions: Sessions) -> None:
    key = new_key(sessions, requests_per_minute=4)
    assert [caller_of(sessions, key) is not None for _ in range(4)] == [True] * 4
    with pytest.raises(Overloaded, match="4 requests a minute") as refusal:
        caller_of(sessions, key)
    assert refusal.value.retry_after is not None
    assert 10 < refusal.value.retry_after <= 16
    rewind(sessions, 16)
    assert caller_of(sessions, key) is not None
    with pytest.raises(Overloaded):
        caller_of(sessions, key)
    rewind(sessions, 10_000)  # a long rest gives one minute's worth, not more
    assert [caller_of(sessions, key) is not None for _ in range(4)] == [True] * 4
    with pytest.raises(Overloaded):
        caller_of(sessions, key)


def test_bytes_are_limited_by_the_hour_and_a_refusal_books_nothing(sessions: Sessions) -> None:
    key = new_key(sessions)
    caller = caller_of(sessions, key, size=3_000_000)
    assert caller is not None
    assert caller.max_bytes == 3_600_000
    with pytest.raises(Overloaded, match="3,600,000 bytes an hour") as refusal:
        caller_of(sessions, key, size=1_000_000)
    assert refusal.value.retry_after == pytest.approx(400, abs=30)
    assert caller_of(sessions, key, size=500_000) is not None


def test_gateways_that_ask_at_once_never_let_more_through(sessions: Sessions, database_url: str) -> None:
    key = new_key(sessions, requests_per_minute=20)
    engines = [open_engine(database_url) for _ in range(2)]
    gateways = [open_sessions(engine) for engine in engines]

    def ask(number: int) -> bool:
        try:
            return caller_of(gateways[number % 2], key) is not None
        except Overloaded:
            return False

    with ThreadPoolExecutor(8) as pool:
        admitted = sum(pool.map(ask, range(60)))
    for engine in engines:
        engine.dispose()
    assert 20 <= admitted <= 24  # a place comes free every 3 s


def test_a_key_is_kept_as_a_hash_and_revoked_by_its_id(sessions: Sessions) -> None:
    with sessions.begin() as session:
        key = create_key(session, "ann", ["review", "submit"], name="laptop", limits=Limits(max_request_bytes=5))
        other = create_key(session, "ann")
        views = {view.name: view for view in list_keys(session)}
        assert (views["laptop"].owner, views["laptop"].scopes) == ("ann", ["submit", "review"])
        assert views["laptop"].used_at is None
        assert key not in repr(list(views.values())) + repr([vars(row) for row in session.scalars(select(ApiKey))])
    caller = caller_of(sessions, key)
    assert caller is not None
    assert (caller.max_bytes, caller.may("submit"), caller.may("admin")) == (5, True, False)
    with sessions.begin() as session:
        used = next(view for view in list_keys(session) if view.name == "laptop")
        assert used.used_at is not None
        assert abs(datetime.now(UTC) - used.used_at) < timedelta(minutes=1)
        assert revoke_key(session, used.id)
        assert not revoke_key(session, used.id)
        for nonsense in ("", "abc", "zzzzzzzzzzzz", "cf_unknown", "%"):
            with pytest.raises(KeyRefused):
                revoke_key(session, nonsense)
    assert caller_of(sessions, key) is None
    assert caller_of(sessions, other) is not None


def test_a_key_made_elsewhere_is_taken_once(sessions: Sessions) -> None:
    key = "cf_" + "0123456789abcdef" * 4
    for _ in range(2):
        with sessions.begin() as session:
            assert create_key(session, "ann", ["admin"], key=key) == key
    with sessions.begin() as session:
        assert len(list_keys(session)) == 1
        with pytest.raises(KeyRefused, match="another owner"):
            create_key(session, "bob", key=key)
        for weak in ("secret", "cf_short", key + "ä"):
            with pytest.raises(KeyRefused, match="43"):
                create_key(session, "ann", key=weak)


def test_a_session_acts_for_its_key_until_it_ends(sessions: Sessions) -> None:
    key = new_key(sessions)
    owner = caller_of(sessions, key)

    def logged_in(session: Session, cookie: str | None) -> Caller | None:
        return admit(session, key_of_login(cookie or ""), DEFAULTS)

    with sessions.begin() as session:
        assert log_in(session, "cf_wrong", 1) is None
        first, second, expired = log_in(session, key, 1), log_in(session, key, 1), log_in(session, key, -0.1)
    with sessions.begin() as session:
        assert logged_in(session, first) == owner
        assert first not in [row.hash for row in session.scalars(select(Login))]
        assert logged_in(session, expired) is None
        assert logged_in(session, "made up") is None
        log_out(session, first or "")
        assert logged_in(session, first) is None
        assert logged_in(session, second) is not None
        log_in(session, key, 1)  # forgets what has expired
        assert len(list(session.scalars(select(Login)))) == 2
        revoke_key(session, key)
        assert logged_in(session, second) is None
