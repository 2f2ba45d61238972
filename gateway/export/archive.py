"""A tar written forwards, piece by piece. It has no directory at its end, so memory does not grow with the export.

Members that are known only at the end (tables of all images) wait in temporary files meanwhile. Every time is 0 and
nobody owns anything, so the same rows give the same bytes.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from typing import IO

END = b"\0" * (2 * tarfile.BLOCKSIZE)
CHUNK_BYTES = 1024**2


def member(name: str, data: bytes) -> Iterator[bytes]:
    """A file of the archive."""
    yield _header(name, len(data)) + data + _padding(len(data))


def member_of(name: str, *files: IO[bytes]) -> Iterator[bytes]:
    """A file of the archive with the contents of files, from their beginning to where they stand, one after another."""
    sizes = [file.tell() for file in files]
    yield _header(name, sum(sizes))
    for file, size in zip(files, sizes, strict=True):
        file.seek(0)
        while size and (chunk := file.read(min(size, CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk
    yield _padding(sum(sizes))


def waiting() -> IO[bytes]:
    """A temporary file for a member that is written later; in memory while it is small."""
    return tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)
