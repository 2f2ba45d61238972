"""API keys: created for an owner, shown once, stored as SHA-256; their scopes and rate limits.

A key has 256 random bits, so a plain hash is enough. Rate limits are in the key's row (below): requests a
minute, bytes an hour.

Rate limits in a row, on the database's clock: they hold across any number of gateways (docs/decisions/access.md).

A column in seconds since 1970 says until when an allowance is used up. Each use moves it ahead by its share of the
period, from now at the earliest. A use that would move it more than a period ahead of now is refused.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Float, ScalarSelect, SQLColumnExpression, case, func, literal, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from gateway.database.sessions import database_now, insert_missing
from gateway.database.table_base import utc_now
from gateway.database.tables import LOCAL_OWNER, ApiKey, Login, Owner
from shared.problems import Overloaded
from shared.seeds import derive_id

MINUTE, HOUR = 60.0, 3600.0  # periods, in seconds
Scope = Literal["submit", "review", "admin"]
SCOPES: tuple[Scope, ...] = ("submit", "review", "admin")

KeyId = str | ScalarSelect[str]
"""The hash of a key, or the subquery of `key_of_login`."""

PREFIX = "cf_"
_KEY = re.compile(r"cf_[A-Za-z0-9_-]{43,200}")
_ID_DIGITS = 12


class KeyRefused(ValueError):
    """A key cannot be created, or does not exist; the message says why."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Rate limits of a key; None is the installation's default."""

    requests_per_minute: int | None = None
    bytes_per_hour: int | None = None
    max_request_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `max_bytes`: the largest body its key may send, or None for the installation's limit."""

    owner: str
    key_hash: str | None = None
    scopes: frozenset[str] = frozenset(SCOPES)
    max_bytes: int | None = None

    @property
    def key_id(self) -> str | None:
        """The id of the key; it does not reveal the key."""
        return self.key_hash and self.key_hash[:_ID_DIGITS]

    def may(self, scope: Scope) -> bool:
        """Whether the key has the scope; `admin` includes all."""
        return scope in self.scopes or "admin" in self.scopes


@dataclass(frozen=True, slots=True)
class KeyView:
    """A key as operators see it; `id` does not reveal the key."""

    id: str
    owner: str
    name: str
    scopes: list[str]
    limits: Limits
    created_at: datetime
    used_at: datetime | None
    revoked_at: datetime | None


def create_key(
    session: Session,
    owner_name: str,
    scopes: Collection[Scope] = ("submit", "review"),
    *,
    name: str = "",
    limits: Limits = Limits(),
    key: str | None = None,
) -> str:
    """Create an API key for the owner with this name, and the owner if necessary.

    `key` registers an existing key; repeating this for the same owner changes nothing. Raises KeyRefused.
    """
    if not owner_name.strip() or len(owner_name) > 200 or len(name) > 200:
        raise KeyRefused("an owner's name has 1 to 200 characters, a key's at most 200")
    if key is not None and not _KEY.fullmatch(key):
        raise KeyRefused(
            "a key is cf_ and at least 43 letters, digits, _ or -, such as cf_ and what `openssl rand -hex 32` prints"
        )
    owner = session.scalar(select(Owner).where(Owner.name == owner_name))
    owner_id = owner.id if owner else derive_id("owner", owner_name)
    insert_missing(session, Owner, [{"id": owner_id, "name": owner_name}])
    key = key or PREFIX + secrets.token_urlsafe(32)
    row = {"hash": hash_of(key), "owner_id": owner_id, "name": name, "scopes": [s for s in SCOPES if s in scopes]}
    insert_missing(session, ApiKey, [{**row, **asdict(limits)}])
    api_key = session.get_one(ApiKey, hash_of(key), populate_existing=True)
    if api_key.owner_id != owner_id or api_key.revoked_at is not None:
        raise KeyRefused("this key belongs to another owner or was revoked; choose a new one")
    return key


def list_keys(session: Session) -> list[KeyView]:
    """All keys, including revoked ones, oldest first."""
    rows = session.execute(select(ApiKey, Owner.name).join(Owner).order_by(ApiKey.created_at, ApiKey.hash))
    return [
        KeyView(
            id=row.hash[:_ID_DIGITS],
            owner=owner,
            name=row.name,
            scopes=row.scopes,
            limits=Limits(row.requests_per_minute, row.bytes_per_hour, row.max_request_bytes),
            created_at=row.created_at,
            used_at=row.used_at,
            revoked_at=row.revoked_at,
        )
        for row, owner in rows
    ]


def revoke_key(session: Session, key_or_id: str) -> bool:
    """Revoke a key, given as key or id, and end its logins. Returns False if it was revoked already.

    Raises KeyRefused when there is no such key.
    """
    if key_or_id.startswith(PREFIX):
        row = session.get(ApiKey, hash_of(key_or_id))
    elif re.fullmatch(rf"[0-9a-f]{{{_ID_DIGITS},64}}", key_or_id):
        row = session.scalar(select(ApiKey).where(ApiKey.hash.startswith(key_or_id)))
    else:
        row = None
    if row is None:
        raise KeyRefused("there is no such key; `contrafact keys list` has the ids")
    if row.revoked_at is not None:
        return False
    row.revoked_at = utc_now()
    return True


def any_key(session: Session) -> bool:
    """Whether any key is valid."""
    return session.scalar(select(ApiKey.hash).where(ApiKey.revoked_at.is_(None)).limit(1)) is not None


def hash_of(secret: str) -> str:
    """The stored hash of a key or of a session's cookie."""
    return hashlib.sha256(secret.encode()).hexdigest()


def key_of_login(cookie: str) -> ScalarSelect[str]:
    """The hash of the key behind a browser's session, as a subquery for `admit`."""
    alive = select(Login.key_hash).where(Login.hash == hash_of(cookie), Login.expires_at > database_now())
    return alive.scalar_subquery()


def admit(session: Session, key_id: KeyId, defaults: Limits, requests: int = 1, size: int = 0) -> Caller | None:
    """Count requests and bytes against a key's limits, in one statement. Returns None for an unknown or revoked key.

    Raises Overloaded, and counts nothing, when a limit is reached; `retry_after` says when to try again.
    """
    per_minute = func.coalesce(ApiKey.requests_per_minute, literal(defaults.requests_per_minute))
    per_hour = func.coalesce(ApiKey.bytes_per_hour, literal(defaults.bytes_per_hour))
    requests_until = moved_ahead(ApiKey.requests_until, requests * MINUTE / per_minute)
    bytes_until = moved_ahead(ApiKey.bytes_until, size * HOUR / per_hour)
    valid = [ApiKey.hash == key_id, ApiKey.revoked_at.is_(None)]
    row = session.execute(
        update(ApiKey)
        .where(*valid, is_within(requests_until, MINUTE), is_within(bytes_until, HOUR))
        .values(requests_until=requests_until, bytes_until=bytes_until, used_at=database_now())
        .returning(ApiKey.hash, ApiKey.owner_id, ApiKey.scopes, ApiKey.max_request_bytes, per_hour)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if row is not None:
        key_hash, owner, scopes, max_request_bytes, whole_hour = row
        return Caller(owner, key_hash, frozenset(scopes), min(max_request_bytes or whole_hour, whole_hour))
    minute_wait, hour_wait = seconds_to_wait(requests_until, MINUTE), seconds_to_wait(bytes_until, HOUR)
    waiting = session.execute(select(minute_wait, hour_wait, per_minute, per_hour).where(*valid)).one_or_none()
    if waiting is None:
        return None
    raise _over_limit(*waiting)


def _over_limit(requests_wait: float, bytes_wait: float, per_minute: int, per_hour: int) -> Overloaded:
    seconds = max(requests_wait, bytes_wait, 0.0)
    limit = f"{per_minute:,} requests a minute" if requests_wait >= bytes_wait else f"{per_hour:,} bytes an hour"
    return Overloaded(
        f"this key's limit of {limit} is reached; retry in {seconds + 1:.0f} s, or ask the operator for a higher limit",
        retry_after=seconds + 1,
    )


def ensure_local_owner(session: Session) -> None:
    """Create the owner of everything in an installation without API keys."""
    insert_missing(session, Owner, [{"id": LOCAL_OWNER, "name": LOCAL_OWNER}])


def scopes_of(names: Sequence[str]) -> list[Scope]:
    """Scopes by name. Raises KeyRefused for an unknown name."""
    unknown = [name for name in names if name not in SCOPES]
    if unknown:
        raise KeyRefused(f"unknown scope {unknown[0]!r}; choose from {', '.join(SCOPES)}")
    return [scope for scope in SCOPES if scope in names]


def moved_ahead(until: SQLColumnExpression[float], seconds: SQLColumnExpression[Any] | float) -> ColumnElement[float]:
    """The new value of the column after a use of `seconds`, its share of the period."""
    return case((until > epoch_now(), until), else_=epoch_now()) + seconds


def is_within(until: ColumnElement[float], period: float) -> ColumnElement[bool]:
    """Whether the new value is at most a period ahead of now."""
    return until <= epoch_now() + period


def seconds_to_wait(until: ColumnElement[float], period: float) -> ColumnElement[float]:
    """How long until the use would be within the limit; negative if it is now."""
    return until - epoch_now() - period


class epoch_now(GenericFunction[float]):
    """SQL: seconds since 1970 on the database's clock."""

    type = Float()
    inherit_cache = True


@compiles(epoch_now, "postgresql")
def _epoch_postgresql(element: epoch_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS double precision)"


@compiles(epoch_now, "sqlite")
def _epoch_sqlite(element: epoch_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"
