"""API keys: made for an owner, shown once, kept as SHA-256 only. Run `python -m gateway.keys NAME` to make one.

The keys are 256 random bits, so a plain hash is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database import insert_missing, open_engine, open_sessions
from gateway.settings import Settings
from gateway.tables import LOCAL_OWNER, ApiKey, Owner, utc_now

PREFIX = "cf_"


def create_key(session: Session, owner_name: str) -> str:
    """A new API key of the owner with this name, who is created if there is none."""
    owner = session.scalar(select(Owner).where(Owner.name == owner_name))
    if owner is None:
        owner = Owner(id=uuid.uuid4().hex, name=owner_name)
        session.add(owner)
        session.flush()
    key = PREFIX + secrets.token_urlsafe(32)
    session.add(ApiKey(hash=_hash(key), owner_id=owner.id))
    return key


def owner_of(session: Session, key: str) -> str | None:
    """The id of the owner whose key this is; None for an unknown or revoked key."""
    return session.scalar(select(ApiKey.owner_id).where(ApiKey.hash == _hash(key), ApiKey.revoked_at.is_(None)))


def revoke_key(session: Session, key: str) -> bool:
    """Make a key useless; False when it was unknown or revoked already."""
    row = session.get(ApiKey, _hash(key))
    if row is None or row.revoked_at is not None:
        return False
    row.revoked_at = utc_now()
    return True


def ensure_local_owner(session: Session) -> None:
    """The owner of everything where no keys are asked for."""
    insert_missing(session, Owner, [{"id": LOCAL_OWNER, "name": LOCAL_OWNER}])


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def main() -> None:
    """Make a key for the owner named on the command line and print it."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m gateway.keys OWNER_NAME")
    with open_sessions(open_engine(Settings().database_url)).begin() as session:
        key = create_key(session, sys.argv[1])
    print(key)


if __name__ == "__main__":
    main()
