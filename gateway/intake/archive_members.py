"""The files of an archive, and the limits and names that archives of any format are checked against."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from shared.characters import is_deceptive
from shared.media.archives import is_tar
from shared.media.testsets import is_hidden, is_spreadsheet
from shared.problems import Malformed, TooLarge

MAX_NAME_CHARACTERS = 1_000
MAX_RATIO = 100  # unpacked to packed bytes; photographs hardly shrink, and flat drawings stay below 50
RATIO_FREE_BYTES = 64 * 1024**2  # below this the ratio is not checked
_NESTED = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
_DOCUMENTS = (".docx", ".pptx", ".odt", ".odp", ".epub", ".npz")  # zips inside, and left out like other files
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)  # of one file
UNREADABLE = (*DAMAGE, tarfile.TarError, OSError, ValueError, RecursionError, NotImplementedError)  # the archive


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits of an archive: files, bytes of one file, bytes in total (unpacked)."""

    files: int
    file_bytes: int
    total_bytes: int


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


class Content:
    """The content of one file of an archive, read forwards. Raises Malformed at once for an archive in an archive."""

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self._read = read
        self._head = read(tarfile.BLOCKSIZE)
        document = is_spreadsheet(name) or name.lower().endswith(_DOCUMENTS)
        if (self._head.startswith(_NESTED) and not document) or is_tar(self._head):
            raise nested(name)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end. See `OpenMember` for the errors."""
        head, self._head = self._head[:size], self._head[size:]
        return head + self._read(size - len(head)) if len(head) < size else head


class Meter:
    """Counts the files and bytes of one archive and enforces the limits."""

    def __init__(
        self,
        packed_bytes: int,
        limits: ArchiveLimits,
        refuse: Callable[[str], None],
        hidden: Callable[[str], None],
    ) -> None:
        self.limits = limits
        self.refuse = refuse
        self._hidden = hidden
        self.most = min(limits.total_bytes, max(RATIO_FREE_BYTES, MAX_RATIO * packed_bytes))
        self.bytes = self.files = 0

    def wanted(self, name: str) -> bool:
        """Whether the file is not hidden; reports it otherwise."""
        if is_hidden(name):
            self._hidden(name)
            return False
        return True

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

    def too_large(self, name: str, size: int) -> str:
        """The problem of a file of `size` bytes; empty if there is none. Raises Malformed if it is an archive."""
        most = self.limits.file_bytes
        if size > most and name.lower().endswith(_ARCHIVES):
            raise nested(name)
        return f"the file is larger than {most:,} bytes; shrink it" if size > most else ""


def nested(name: str) -> Malformed:
    return Malformed(f"the archive holds another archive, {name!r}; unpack it first, or send it alone")


def unreadable(error: Exception) -> Malformed:
    return Malformed(f"the archive cannot be read ({str(error) or type(error).__name__}); pack it again")


def check_name(raw: str) -> str:
    name = raw.encode("utf-8", "replace").decode().replace("\\", "/").removeprefix("./")
    if len(name) > MAX_NAME_CHARACTERS:
        raise Malformed(f"the archive holds a file name of more than {MAX_NAME_CHARACTERS:,} characters; shorten it")
    if name.startswith("/") or name[1:2] == ":" or ".." in name.split("/"):
        raise Malformed(f"the archive holds the path {name!r}, which leaves the archive; pack relative paths only")
    if any(map(is_deceptive, name)):
        raise Malformed(f"the archive holds the path {name!r} with control characters; rename it")
    return name
