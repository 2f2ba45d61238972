"""The object store: its interface, its keys, and the implementation in a directory."""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import re
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

from shared.problems import DependencyFailed

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_INCOMING = ".incoming"  # no key starts with a dot
_SECRET = ".link-secret"
_PIECE_BYTES = 1024**2
_ABANDONED_SECONDS = 24 * 3600.0
LINK_PATH = "/stored/"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object as `iterate` lists it; `size` in bytes."""

    key: str
    size: int
    modified: datetime


class ObjectMissing(KeyError):
    """No object has this key."""


class ObjectStore(Protocol):
    """Bytes by key; a put may be repeated. All methods may be called from any thread and raise DependencyFailed."""

    def put(self, key: str, data: bytes) -> None:
        """Store `data`, all or nothing; an object with this key is replaced."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes of `key`. Raises ObjectMissing."""
        ...

    def pieces(self, key: str) -> Iterator[bytes]:
        """The bytes of `key` in pieces, for objects that need not fit into memory. Raises ObjectMissing at once."""
        ...

    def put_file(self, key: str, file: IO[bytes]) -> None:
        """Store an open file from its beginning, as `put` does; it need not fit into memory."""
        ...

    def link(self, key: str, seconds: int) -> str:
        """Return a URL that allows GET of this object only, for `seconds` seconds."""
        ...

    def exists(self, key: str) -> bool:
        """Whether an object has this key."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        ...

    def iterate(self, prefix: str = "") -> Iterator[StoredObject]:
        """All objects whose keys start with `prefix`, ordered by key."""
        ...


def image_key(digest: str) -> str:
    """The key of an image's canonical PNG."""
    return f"images/{digest[:2]}/{digest}.png"


def call_key(key: str) -> str:
    """The key of the vectors in the reply of the recorded call `key`."""
    return f"calls/{key[:2]}/{key}.npz"


def model_key(digest: str, model_id: str) -> str:
    """The key of an uploaded model under test: by its package's digest and its row's id, so that none is shared."""
    return f"models/{digest[:2]}/{digest}-{model_id}.tar"


def repair_key(repair: str, *names: str) -> str:
    """The key of an object that belongs to a repair: order, lease, heartbeat, checkpoints, models."""
    return "/".join(("repairs", repair, *names))


def check_key(key: str) -> str:
    """Return `key` if it is a relative path of plain names, else raise ValueError: no key may escape a directory."""
    if not _KEY.fullmatch(key) or len(key) > 512:
        raise ValueError(f"not an object key (plain names joined by slashes): {key!r}")
    return key


class DirectoryStore:
    """Objects as files under one directory; a put is a rename, so a crash leaves the old object or the new one.

    Links are signed with a secret that is kept in the directory. The gateway at `url` serves them
    (`gateway.api.signed_downloads`).
    """

    def __init__(self, root: Path, url: str = "http://127.0.0.1:8000") -> None:
        self._root = root
        self._url = url.rstrip("/")
        self._incoming = root / _INCOMING
        self._incoming.mkdir(parents=True, exist_ok=True)
        for path in self._incoming.iterdir():  # left by processes that ended while writing
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()

    def put(self, key: str, data: bytes) -> None:
        """Write a temporary file, flush it to disk, rename it into place."""
        self.put_file(key, io.BytesIO(data))

    def put_file(self, key: str, file: IO[bytes]) -> None:
        """As `put`, in chunks."""
        target = self._path(key)
        incoming = self._incoming / uuid.uuid4().hex
        file.seek(0)
        try:
            with incoming.open("wb") as output:
                shutil.copyfileobj(file, output, _PIECE_BYTES)
                output.flush()
                os.fsync(output.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            incoming.replace(target)
            _sync_directory(target.parent)
        except OSError as error:
            incoming.unlink(missing_ok=True)
            raise DependencyFailed(f"cannot write to the object store at {self._root}: {error}") from error

    def get(self, key: str) -> bytes:
        """The file's bytes."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise ObjectMissing(key) from None

    def pieces(self, key: str) -> Iterator[bytes]:
        """The file's bytes, in chunks."""
        try:
            file = self._path(key).open("rb")
        except FileNotFoundError:
            raise ObjectMissing(key) from None
        return _chunks(file)

    def link(self, key: str, seconds: int) -> str:
        """A URL of the gateway with an expiry and a signature over key and expiry."""
        expires = int(time.time()) + seconds
        return f"{self._url}{LINK_PATH}{check_key(key)}?expires={expires}&signature={self._signature(key, expires)}"

    def file_of_link(self, key: str, expires: int, signature: str) -> Path:
        """Return the file of a link. Raises PermissionError for an invalid or expired link, and ObjectMissing."""
        signed = hmac.compare_digest(self._signature(key, expires).encode(), signature.encode())
        if not signed or expires < time.time():
            raise PermissionError("this link is invalid or has expired")
        path = self._path(key)
        if not path.is_file():
            raise ObjectMissing(key)
        return path

    def exists(self, key: str) -> bool:
        """Whether the file is there."""
        return self._path(key).is_file()

    def delete(self, key: str) -> None:
        """Unlink the file; empty directories stay."""
        self._path(key).unlink(missing_ok=True)

    def iterate(self, prefix: str = "") -> Iterator[StoredObject]:
        """Walk the files in key order, with the names of one folder in memory at a time."""
        return self._below("", prefix)

    def _below(self, folder: str, prefix: str) -> Iterator[StoredObject]:
        """Objects below `folder`, which ends in `/` unless it is the root."""
        try:
            with os.scandir(self._root / folder) as entries:
                keys = sorted(f"{folder}{entry.name}{'/' if entry.is_dir() else ''}" for entry in entries)
        except FileNotFoundError:  # deleted during the walk
            return
        for key in keys:
            if key.startswith("."):
                continue
            if key.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._below(key, prefix)
            elif key.startswith(prefix):
                with suppress(FileNotFoundError):
                    stat = (self._root / key).stat()
                    yield StoredObject(key, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC))

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _signature(self, key: str, expires: int) -> str:
        return hmac.new(self._secret(), f"{expires}/{key}".encode(), hashlib.sha256).hexdigest()

    def _secret(self) -> bytes:
        """Random bytes shared by all processes of this directory; the first process that needs them writes them."""
        path = self._root / _SECRET
        if not path.is_file():
            temporary = self._incoming / uuid.uuid4().hex
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
            with suppress(FileExistsError):  # another process was faster
                os.link(temporary, path)
            temporary.unlink()
        return path.read_bytes()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_PIECE_BYTES):
            yield chunk


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
