"""Sessions of browsers: a random cookie for an API key, kept as SHA-256 only; gone with time or with the key."""

from __future__ import annotations

import secrets

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gateway.auth.keys import hash_of
from gateway.database.sessions import database_now
from gateway.database.tables import ApiKey, Login


def log_in(session: Session, key: str, hours: float) -> str | None:
    """The cookie of a new session for this API key; None for an unknown or revoked key. Forgets expired sessions."""
    found = session.scalar(select(ApiKey.hash).where(ApiKey.hash == hash_of(key), ApiKey.revoked_at.is_(None)))
    if found is None:
        return None
    session.execute(delete(Login).where(Login.expires_at < database_now()))
    cookie = secrets.token_urlsafe(32)
    expiry = session.scalars(select(database_now(hours * 3600))).one()
    session.add(Login(hash=hash_of(cookie), key_hash=found, expires_at=expiry))
    return cookie


def log_out(session: Session, cookie: str) -> None:
    """End the session, if it is one."""
    session.execute(delete(Login).where(Login.hash == hash_of(cookie)))
