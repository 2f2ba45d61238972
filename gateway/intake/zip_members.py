"""Reads untrusted zip files: refuses links, devices, encryption and huge directories; one damaged file fails alone."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable, Iterator
from typing import IO

from gateway.intake.archive_members import (
    DAMAGE,
    Content,
    DamagedMember,
    Meter,
    OpenMember,
    check_name,
)
from shared.problems import Malformed, TooLarge

MAX_DIRECTORY_BYTES = 32 * 1024**2  # a zip's central directory is read in one piece
_ENTRY = b"PK\x01\x02"  # the start of each entry of a zip's directory


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
    if problem := meter.too_large(info.file_size):
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
