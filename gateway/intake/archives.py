"""Reads untrusted zip and tar files: one member at a time, as a stream, nothing written to disk.

Refuses absolute paths and paths with `..`, links, devices, sparse and encrypted members, nested archives, and archives
that unpack beyond the limits. A damaged or too large member is returned with its problem, so only that image fails.
Names are data and are never opened. The module knows nothing about images.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from gateway.intake.archive_members import UNREADABLE, ArchiveLimits, DamagedMember, Meter, OpenMember, unreadable
from gateway.intake.tar_members import tar_members
from gateway.intake.zip_members import zip_members
from shared.archives import beginning, is_tar
from shared.problems import Malformed


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of an archive. If it cannot be read, `data` is None and `problem` says why."""

    name: str
    data: bytes | None
    problem: str = ""


def members(
    file: IO[bytes], limits: ArchiveLimits, hidden: Callable[[str], None] = lambda name: None
) -> Iterator[Member]:
    """The files of an archive with their contents, each in memory while it is yielded; otherwise as `open_members`."""
    for member in open_members(file, limits, hidden=hidden):
        if member.content is None:
            yield Member(member.name, None, member.problem)
            continue
        try:
            yield Member(member.name, member.content.read(limits.file_bytes + 1))
        except DamagedMember as damage:
            yield Member(member.name, None, damage.detail)


def open_members(
    file: IO[bytes],
    limits: ArchiveLimits,
    refuse: Callable[[str], None] = lambda name: None,
    hidden: Callable[[str], None] = lambda name: None,
) -> Iterator[OpenMember]:
    """The files of a zip, tar or tar.gz in the archive's order, without those that `shared.testsets` calls hidden.

    `refuse` is called with each file's name before its content is read, and may raise; `hidden` with the names of those
    left out. Raises `Malformed` for an unreadable archive and `TooLarge` beyond the limits, perhaps after some members.
    """
    head = beginning(file)
    meter = Meter(_size(file), limits, refuse, hidden)
    try:
        if head.startswith(b"PK"):
            yield from zip_members(file, meter)
        elif head.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                yield from tar_members(unpacked, meter)
        elif is_tar(head):
            yield from tar_members(file, meter)
        else:
            raise Malformed("the archive is neither zip, tar nor tar.gz")
    except UNREADABLE as error:
        raise unreadable(error) from error


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size
