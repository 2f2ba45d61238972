"""Whether a file is a zip, a tar or a tar.gz, by how it begins."""

from __future__ import annotations

import tarfile
from typing import IO


def is_archive(file: IO[bytes]) -> bool:
    """Whether the file begins like a zip, a gzip or a tar. Leaves the file at its beginning."""
    head = beginning(file)
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b")) or is_tar(head)


def beginning(file: IO[bytes]) -> bytes:
    """Its first bytes, a tar's header long. Leaves the file at its beginning."""
    file.seek(0)
    head = file.read(tarfile.BLOCKSIZE)
    file.seek(0)
    return head


def is_tar(head: bytes) -> bool:
    """Whether it begins with a tar's header, checksum included: five letters may stand in a picture, too."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], tarfile.ENCODING, "surrogateescape")
    except tarfile.TarError:
        return False
    return head[257:262] == b"ustar"
