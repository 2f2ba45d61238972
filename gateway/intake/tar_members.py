"""Reads untrusted tar files forwards: refuses links, devices, sparse files and headers that would cost tarfile much."""

from __future__ import annotations

import gzip
import re
import tarfile
from collections.abc import Callable, Iterator
from typing import IO

from gateway.intake.archive_members import (
    UNREADABLE,
    Content,
    Meter,
    OpenMember,
    check_name,
    unreadable,
)
from shared.problems import Malformed

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
            if problem := meter.too_large(info.size):
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
