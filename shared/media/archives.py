"""Detect a zip, tar or tar.gz file by its first bytes."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO


def is_archive(file: IO[bytes]) -> bool:
    """Whether the file begins like a zip, a gzip or a tar. Leaves the file at its beginning."""
    head = beginning(file)
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b")) or is_tar(head)


def is_archive_file(path: Path) -> bool:
    """Whether there is an archive at a path."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return is_archive(file)


def beginning(file: IO[bytes]) -> bytes:
    """Read as many first bytes as a tar header has (512). Leaves the file at its beginning."""
    file.seek(0)
    head = file.read(tarfile.BLOCKSIZE)
    file.seek(0)
    return head


def is_tar(head: bytes) -> bool:
    """Whether `head` is a tar header with a valid checksum; the magic letters alone may also occur in an image."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], tarfile.ENCODING, "surrogateescape")
    except tarfile.TarError:
        return False
    return head[257:262] == b"ustar"
