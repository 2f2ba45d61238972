"""Tables of owners: their API keys, logins, images and uploaded models under test."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.database.table_base import Id, Table, utc_now
from shared.schemas.base import Kind

LOCAL_OWNER = "local"


class Owner(Table):
    """An owner of jobs, who sees nothing of other owners. Embedded mode has one: `LOCAL_OWNER`."""

    __tablename__ = "owners"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ApiKey(Table):
    """An owner's API key; only its SHA-256 (hex) is stored.

    A limit of None stands for the installation's limit. `requests_until` and `bytes_until` (seconds since 1970 on the
    database's clock) implement the rate limits: see `gateway.auth.keys.admit`.
    """

    __tablename__ = "api_keys"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(200), default="")
    scopes: Mapped[list[str]] = mapped_column(default=list)
    requests_per_minute: Mapped[int | None]
    bytes_per_hour: Mapped[int | None] = mapped_column(BigInteger)
    max_request_bytes: Mapped[int | None] = mapped_column(BigInteger)
    requests_until: Mapped[float] = mapped_column(default=0.0)
    bytes_until: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Login(Table):
    """A browser's session for an API key; only the SHA-256 (hex) of its cookie is stored."""

    __tablename__ = "logins"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_hash: Mapped[str] = mapped_column(ForeignKey("api_keys.hash", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]


class Image(Table):
    """An image in the object store, under the key of its digest (canonical pixels; see `shared.media.storage`).

    `unreferenced_since` is when housekeeping first saw that no row needs it (`gateway.operations.housekeeping`).
    """

    __tablename__ = "images"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    mode: Mapped[str] = mapped_column(String(4), default="RGB")
    width: Mapped[int]
    height: Mapped[int]
    bytes: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    unreferenced_since: Mapped[datetime | None] = mapped_column(index=True)


class OwnedImage(Table):
    """An image that an owner may see: one that they uploaded, or that their job rendered."""

    __tablename__ = "owned_images"

    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("images.digest"), primary_key=True, index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Upload(Table):
    """The SHA-256 of an uploaded file and the image made from it. Makes `PUT /images/{digest}` idempotent."""

    __tablename__ = "uploads"

    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"), primary_key=True)
    original_digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("images.digest"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ModelUnderTest(Table):
    """A model under test that its owner uploaded; its package is in the object store under `storage.model_key`.

    `digest` is the package's SHA-256, `classes` are the names of its outputs. The row is written after the package.
    """

    __tablename__ = "models_under_test"
    __table_args__ = (UniqueConstraint("owner_id", "name"), Index("ix_models_under_test_digest", "owner_id", "digest"))

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    digest: Mapped[str] = mapped_column(String(64))
    format: Mapped[str] = mapped_column(String(20))
    kind: Mapped[Kind] = mapped_column("task", String(20))
    classes: Mapped[list[str]]
    bytes: Mapped[int] = mapped_column(BigInteger)
    licence: Mapped[str] = mapped_column(String(200), default="")
    description: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
