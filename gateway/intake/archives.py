"""Reads untrusted zip and tar files: one member at a time, as a stream, nothing written to disk.

Refuses absolute paths and paths with `..`, links, devices, sparse and encrypted members, nested archives, and archives
that unpack beyond the limits. A damaged or too large member is returned with its problem, so only that image fails.
Names are data and are never opened. The module knows nothing about images.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from shared.archives import beginning, is_tar
from shared.characters import is_deceptive
from shared.problems import Malformed, TooLarge

MAX_NAME_CHARACTERS = 1_000
MAX_RATIO = 100  # unpacked to packed bytes; photographs hardly shrink, and flat drawings stay below 50
RATIO_FREE_BYTES = 64 * 1024**2  # below this the ratio is not checked
MAX_DIRECTORY_BYTES = 32 * 1024**2  # a zip's central directory is read in one piece
MAX_HEADER_BYTES = 64 * 1024  # of a tar's extended header: long names, times, attributes
_JUNK = {"__macosx", "thumbs.db", "desktop.ini"}
_NESTED = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")
_TAR_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
_TAR_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
# tarfile takes quadratic time over long runs of digits, and over the maps of sparse files.
_TAR_TRAPS = re.compile(rb"GNU\.sparse|\d{100}")
_ENTRY = b"PK\x01\x02"  # the start of each entry of a zip's directory
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
_UNREADABLE = (*_DAMAGE, tarfile.TarError, OSError, ValueError, RecursionError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of an archive: files, bytes of one file, bytes in total (unpacked)."""

    files: int
    file_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of an archive. If it cannot be read, `data` is None and `problem` says why."""

    name: str
    data: bytes | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OpenMember:
    """A regular file of an archive, readable until the iterator moves on. `content` is None if it has a `problem`.

    Reading raises DamagedMember if only this file is damaged, and the errors of `open_members` otherwise.
    """

    name: str
    content: Content | None
    problem: str = ""


class DamagedMember(Malformed):
    """A file inside a zip is damaged; the other files can be read."""


def members(file: IO[bytes], limits: ArchiveLimits) -> Iterator[Member]:
    """The files of an archive with their contents, each in memory while it is yielded; otherwise as `open_members`."""
    for member in open_members(file, limits):
        if member.content is None:
            yield Member(member.name, None, member.problem)
            continue
        try:
            yield Member(member.name, member.content.read(limits.file_bytes + 1))
        except DamagedMember as damage:
            yield Member(member.name, None, damage.detail)


def open_members(
    file: IO[bytes], limits: ArchiveLimits, refuse: Callable[[str], None] = lambda name: None
) -> Iterator[OpenMember]:
    """The files of a zip, tar or tar.gz in the archive's order, without hidden files and operating systems' junk.

    `refuse` is called with each file's name before its content is read, and may raise. Raises `Malformed` for an
    unreadable archive and `TooLarge` beyond the limits, perhaps after some members.
    """
    head = beginning(file)
    meter = _Meter(_size(file), limits, refuse)
    try:
        if head.startswith(b"PK"):
            yield from _zip_members(file, meter)
        elif head.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                yield from _tar_members(unpacked, meter)
        elif is_tar(head):
            yield from _tar_members(file, meter)
        else:
            raise Malformed("the archive is neither zip, tar nor tar.gz")
    except _UNREADABLE as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> Malformed:
    return Malformed(f"the archive cannot be read ({str(error) or type(error).__name__}); pack it again")


class _Meter:
    """Counts the files and bytes of one archive and enforces the limits."""

    def __init__(self, packed_bytes: int, limits: ArchiveLimits, refuse: Callable[[str], None]) -> None:
        self.limits = limits
        self.refuse = refuse
        self.most = min(limits.total_bytes, max(RATIO_FREE_BYTES, MAX_RATIO * packed_bytes))
        self.bytes = self.files = 0

    def spend(self, size: int) -> None:
        self.foresee(size)
        self.bytes += size

    def foresee(self, size: int) -> None:
        """Raise TooLarge before unpacking if `size` more bytes exceed the limit."""
        if self.bytes + size > self.most:
            raise TooLarge(f"the archive unpacks to more than {self.most:,} bytes; send it in smaller parts")

    def count(self) -> None:
        self.files += 1
        self.refuse_count(self.files)

    def refuse_count(self, files: int) -> None:
        if files > self.limits.files:
            raise TooLarge(f"the archive holds more than {self.limits.files:,} files; send several jobs")

    def too_large(self, size: int) -> str:
        """The problem of a file of `size` bytes; empty if there is none."""
        most = self.limits.file_bytes
        return f"the file is larger than {most:,} bytes; shrink it" if size > most else ""


def _zip_members(file: IO[bytes], meter: _Meter) -> Iterator[OpenMember]:
    guarded = _Guarded(file, meter)
    with zipfile.ZipFile(guarded) as archive:
        guarded.in_directory = False
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            name = _checked_name(info.filename)
            meter.count()
            if info.is_dir() or kind == stat.S_IFDIR:
                continue
            if kind not in (0, stat.S_IFREG):
                raise Malformed(f"the archive holds {name!r}, which is a link or a device; pack plain files only")
            if info.flag_bits & 0x1:
                raise Malformed(f"the archive holds {name!r}, which is encrypted; pack it without a password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Malformed(f"the archive holds {name!r} in an unusual compression; pack it with deflate")
            if not _is_junk(name):
                meter.refuse(name)
                yield from _zip_member(archive, info, name, meter)


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, meter: _Meter) -> Iterator[OpenMember]:
    if problem := meter.too_large(info.file_size):
        yield OpenMember(name, None, problem)
        return
    meter.spend(info.file_size)  # zipfile unpacks no more of a file than its directory declares
    try:
        with archive.open(info) as packed:
            content = Content(_undamaged(packed.read), name)
            yield OpenMember(name, content)
    except _DAMAGE as error:
        yield OpenMember(name, None, _damaged(error))
    except DamagedMember as damage:  # in the first bytes, which `Content` reads
        yield OpenMember(name, None, damage.detail)


def _undamaged(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def reading(size: int) -> bytes:
        try:
            return read(size)
        except _DAMAGE as error:
            raise DamagedMember(_damaged(error)) from error

    return reading


def _damaged(error: Exception) -> str:
    return f"the file is damaged inside the archive: {error}"


def _tar_members(file: IO[bytes] | gzip.GzipFile, meter: _Meter) -> Iterator[OpenMember]:
    stream = _Forward(file, meter)
    with tarfile.TarFile(fileobj=stream, tarinfo=_Header) as archive:  # type: ignore[arg-type]
        for info in archive:
            name = _checked_name(info.name)
            meter.count()
            if info.isdir() or _is_junk(name):
                continue
            meter.refuse(name)
            if problem := meter.too_large(info.size):
                yield OpenMember(name, None, problem)
                continue
            meter.foresee(info.size)
            yield OpenMember(name, Content(stream.content(info, name), name))
    if stream.last_block.strip(b"\0"):  # tarfile takes a damaged header for the end of the archive
        raise Malformed("the archive is damaged in the middle; pack it again")
    stream.drain()


class Content:
    """The content of one file of an archive, read forwards. Raises Malformed at once for an archive in an archive."""

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self._read = read
        self._head = read(tarfile.BLOCKSIZE)
        if self._head.startswith(_NESTED) or is_tar(self._head):
            raise Malformed(f"the archive holds another archive, {name!r}; unpack it first")

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. See `OpenMember` for the errors."""
        head, self._head = self._head[:size], self._head[size:]
        return head + self._read(size - len(head)) if len(head) < size else head


class _Header(tarfile.TarInfo):
    """A tar header that is checked before tarfile uses it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Called by tarfile with every 512-byte header."""
        header = super().frombuf(buf, encoding, errors)
        if header.type not in _TAR_FILES + _TAR_HEADERS:
            raise Malformed(
                f"the archive holds {_checked_name(header.name)!r}, which is a link, a device or sparse; "
                "pack plain files only"
            )
        if header.size < 0 or (header.type in _TAR_HEADERS and header.size > MAX_HEADER_BYTES):
            raise Malformed(f"the archive has a header of {header.size:,} bytes; pack it again")
        return header


class _Forward:
    """A forward-only file for tarfile, so that neither gzip nor a header can cause repeated work."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, meter: _Meter) -> None:
        self._file, self._meter, self._position = file, meter, 0
        self.last_block = b""

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Called by tarfile to read headers."""
        if not 0 <= size <= MAX_HEADER_BYTES + tarfile.BLOCKSIZE:
            raise Malformed(f"the archive has a header of more than {MAX_HEADER_BYTES:,} bytes; pack it again")
        self.last_block = self._take(size)
        if _TAR_TRAPS.search(self.last_block):
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
            except _UNREADABLE as error:
                raise _unreadable(error) from error
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


class _Guarded:
    """A file for zipfile that refuses a huge directory before zipfile creates an object for each entry."""

    def __init__(self, file: IO[bytes], meter: _Meter) -> None:
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


def _checked_name(raw: str) -> str:
    name = raw.encode("utf-8", "replace").decode().replace("\\", "/").removeprefix("./")
    if len(name) > MAX_NAME_CHARACTERS:
        raise Malformed(f"the archive holds a file name of more than {MAX_NAME_CHARACTERS:,} characters; shorten it")
    if name.startswith("/") or name[1:2] == ":" or ".." in name.split("/"):
        raise Malformed(f"the archive holds the path {name!r}, which leaves the archive; pack relative paths only")
    if any(map(is_deceptive, name)):
        raise Malformed(f"the archive holds the path {name!r} with control characters; rename it")
    return name


def _is_junk(name: str) -> bool:
    return any(part.startswith(".") or part.lower() in _JUNK for part in name.split("/"))


def _size(file: IO[bytes]) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size
