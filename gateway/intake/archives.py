"""Reads untrusted zip and tar files: one member at a time, as a stream, nothing written to disk.

Refuses absolute paths and paths with `..`, links, devices, sparse and encrypted members, nested archives, and archives
that unpack beyond the limits. A damaged or too large member is returned with its problem, so only that image fails.
Names are data and are never opened. The module knows nothing about images.

Reads untrusted tar files forwards: refuses links, devices, sparse files and headers that would cost tarfile much.

Reads untrusted zip files: refuses links, devices, encryption and huge directories; one damaged file fails alone.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from gateway.intake.archive_members import (
    DAMAGE,
    UNREADABLE,
    ArchiveLimits,
    Content,
    DamagedMember,
    Meter,
    OpenMember,
    check_name,
    unreadable,
)
from shared.media.archives import beginning, is_tar
from shared.problems import Malformed, TooLarge

MAX_DIRECTORY_BYTES = 32 * 1024**2  # a zip's central directory is read in one piece
_ENTRY = b"PK\x01\x02"  # the start of each entry of a zip's directory
MAX_HEADER_BYTES = 64 * 1024  # of a tar's extended header: long names, times, attributes
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
# tarfile takes quadratic time over long runs of digits, and over the maps of sparse files.
_TRAPS = re.compile(rb"GNU\.sparse|\d{100}")


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
    """The files of a zip, tar or tar.gz in the archive's order, without those that `testsets` calls hidden.

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
                if unpacked.peek(4).startswith(b"PK\x03\x04"):
                    raise Malformed("the archive is a zip inside gzip; unpack the gzip, and send the zip")
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


def tar_members(file: IO[bytes] | gzip.GzipFile, meter: Meter) -> Iterator[OpenMember]:
    """The plain files of a tar. Raises as `gateway.intake.archives.open_members`."""
    stream = _Forward(file, meter)
    with tarfile.TarFile(fileobj=stream, tarinfo=_Header) as archive:  # type: ignore[arg-type]
        for info in archive:
            name = check_name(info.name)
            meter.count()
            if info.isdir() or not meter.wanted(name):
                continue
            meter.refuse(name)
            if problem := meter.too_large(name, info.size):
                yield OpenMember(name, None, problem)
                continue
            meter.foresee(info.size)
            yield OpenMember(name, Content(stream.content(info, name), name))
    if stream.last_block.strip(b"\0"):  # tarfile takes a damaged header for the end of the archive
        raise Malformed("the archive is damaged in the middle; pack it again")
    stream.drain()


class _Header(tarfile.TarInfo):
    """A tar header that is checked before tarfile uses it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Called by tarfile with every 512-byte header."""
        header = super().frombuf(buf, encoding, errors)
        if header.type not in _FILES + _HEADERS:
            raise Malformed(
                f"the archive holds {check_name(header.name)!r}, which is a link, a device or sparse; "
                "pack plain files only"
            )
        if header.size < 0 or (header.type in _HEADERS and header.size > MAX_HEADER_BYTES):
            raise Malformed(f"the archive has a header of {header.size:,} bytes; pack it again")
        return header


class _Forward:
    """A forward-only file for tarfile, so that neither gzip nor a header can cause repeated work."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, meter: Meter) -> None:
        self._file, self._meter, self._position = file, meter, 0
        self.last_block = b""

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Called by tarfile to read headers."""
        if not 0 <= size <= MAX_HEADER_BYTES + tarfile.BLOCKSIZE:
            raise Malformed(f"the archive has a header of more than {MAX_HEADER_BYTES:,} bytes; pack it again")
        self.last_block = self._take(size)
        if _TRAPS.search(self.last_block):
            raise Malformed("the archive has sparse files, or numbers of a hundred digits; pack plain files only")
        return self.last_block

    def content(self, info: tarfile.TarInfo, name: str) -> Callable[[int], bytes]:
        """Reads the content of the file whose header was read last, until its end."""
        self.seek(info.offset_data)
        end = info.offset_data + info.size

        def read(size: int) -> bytes:
            requested = min(size, end - self._position)
            try:
                data = self._take(requested)
            except UNREADABLE as error:
                raise unreadable(error) from error
            if len(data) < requested:
                raise Malformed(f"the archive ends inside {name!r}; send it again")
            return data

        return read

    def seek(self, position: int) -> None:
        if position < self._position:
            raise Malformed("the archive's headers point backwards; pack it again")
        while self._position < position and self._take(min(position - self._position, 1024**2)):
            pass

    def drain(self) -> None:
        """Read to the end of the stream, where gzip verifies its checksum."""
        while self._take(1024**2):
            pass

    def _take(self, size: int) -> bytes:
        data = self._file.read(size)
        self._position += len(data)
        self._meter.spend(len(data))
        return data


def zip_members(file: IO[bytes], meter: Meter) -> Iterator[OpenMember]:
    """The plain files of a zip. Raises as `gateway.intake.archives.open_members`."""
    guarded = _Guarded(file, meter)
    with zipfile.ZipFile(guarded) as archive:
        guarded.in_directory = False
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            name = check_name(info.filename)
            meter.count()
            if info.is_dir() or kind == stat.S_IFDIR:
                continue
            if kind not in (0, stat.S_IFREG):
                raise Malformed(f"the archive holds {name!r}, which is a link or a device; pack plain files only")
            if info.flag_bits & 0x1:
                raise Malformed(f"the archive holds {name!r}, which is encrypted; pack it without a password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Malformed(f"the archive holds {name!r} in an unusual compression; pack it with deflate")
            if meter.wanted(name):
                meter.refuse(name)
                yield from _zip_member(archive, info, name, meter)


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, meter: Meter) -> Iterator[OpenMember]:
    if problem := meter.too_large(name, info.file_size):
        yield OpenMember(name, None, problem)
        return
    meter.spend(info.file_size)  # zipfile unpacks no more of a file than its directory declares
    try:
        with archive.open(info) as packed:
            content = Content(_check_damage(packed.read), name)
            yield OpenMember(name, content)
    except DAMAGE as error:
        yield OpenMember(name, None, _damage_message(error))
    except DamagedMember as damage:  # in the first bytes, which `Content` reads
        yield OpenMember(name, None, damage.detail)


def _check_damage(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def reading(size: int) -> bytes:
        try:
            return read(size)
        except DAMAGE as error:
            raise DamagedMember(_damage_message(error)) from error

    return reading


def _damage_message(error: Exception) -> str:
    return f"the file is damaged inside the archive: {error}"


class _Guarded:
    """A file for zipfile that refuses a huge directory before zipfile creates an object for each entry."""

    def __init__(self, file: IO[bytes], meter: Meter) -> None:
        self._file, self._meter = file, meter
        self.seek, self.tell = file.seek, file.tell
        self.in_directory = True  # zipfile first reads the whole directory, then members on request

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self.in_directory and size > MAX_DIRECTORY_BYTES:
            raise TooLarge("the archive's directory is too large; send it in smaller parts")
        data = self._file.read(size)
        if self.in_directory:
            self._meter.refuse_count(data.count(_ENTRY))
        return data
