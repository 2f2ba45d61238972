"""Browser sessions: a random cookie for an API key, stored as SHA-256. A session ends with time or with its key."""

from __future__ import annotations

import secrets

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gateway.auth.keys import hash_of
from gateway.database.sessions import database_now
from gateway.database.tables import ApiKey, Login


def log_in(session: Session, key: str, hours: float) -> str | None:
    """Start a session and return its cookie; None for an unknown or revoked key. Deletes expired sessions."""
    key_hash = session.scalar(select(ApiKey.hash).where(ApiKey.hash == hash_of(key), ApiKey.revoked_at.is_(None)))
    if key_hash is None:
        return None
    session.execute(delete(Login).where(Login.expires_at < database_now()))
    cookie = secrets.token_urlsafe(32)
    expiry = session.scalars(select(database_now(hours * 3600))).one()
    session.add(Login(hash=hash_of(cookie), key_hash=key_hash, expires_at=expiry))
    return cookie


def log_out(session: Session, cookie: str) -> None:
    """End the session of this cookie, if there is one."""
    session.execute(delete(Login).where(Login.hash == hash_of(cookie)))
