"""A tar archive as a stream of chunks. A tar has no directory at its end, so memory does not grow with the export.

Members that are complete only at the end (tables of all images) are written to temporary files first. All times and
owners are empty, so the same rows give the same bytes.
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
    """A file of the archive: the concatenated contents of files, each from its beginning to its current position."""
    sizes = [file.tell() for file in files]
    yield _header(name, sum(sizes))
    for file, size in zip(files, sizes, strict=True):
        file.seek(0)
        while size and (chunk := file.read(min(size, CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk
    yield _padding(sum(sizes))


def temporary_member() -> IO[bytes]:
    """A temporary file for a member that is written later. It stays in memory while it is small."""
    return tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)
