"""Archives: zips and tars that no honest program packs, and the refusal that each gets."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.gateway_under_test import picture

MEGABYTE = 1024**2


@dataclass(frozen=True)
class Pack:
    """An archive that is answered with `status`, in a sentence that contains `words`."""

    name: str
    build: Callable[[], bytes]
    status: int
    words: str


def zipped(*files: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED, attributes: int = 0) -> bytes:
    """A zip of (name, content), whatever the names."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files:
            info = zipfile.ZipInfo(name)
            info.external_attr = attributes << 16
            archive.writestr(info, data, method, 1)
    return packed.getvalue()


def tarred(*files: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, pax: dict[str, str] | None = None) -> bytes:
    """A tar of (name, content), whatever the names and kinds."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "../../etc/passwd" if kind in b"12" else "", len(data)
            info.pax_headers = pax or {}
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """One tar header that claims a size."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def _extended(content: bytes) -> bytes:
    """A tar whose first header is an extended one of this content."""
    return header("x", len(content), tarfile.XHDTYPE) + content + bytes(-len(content) % 512) + tarred(("a.png", b"x"))


def _nested(inner: bytes) -> Callable[[], bytes]:
    return lambda: zipped(("a.png", picture()), ("inner.png", inner))


def _renamed(old: bytes, new: bytes) -> bytes:
    """A zip, or tar, of one picture with another name written over its own."""
    return zipped((old.decode(), picture())).replace(old, new)


def _zeros(count: int, break_checksum: bool = False) -> bytes:
    """A zip of `count` files of 19 MB that shrink to nothing."""
    once = zipped(("a.bin", bytes(19 * MEGABYTE)))
    directory = once.index(b"PK\1\2")
    body, entry = once[:directory], once[directory:-22]
    if break_checksum:
        entry = entry[:16] + b"evil" + entry[20:]
        body = body[:14] + b"evil" + body[18:]
    entries = b"".join(entry[:42] + struct.pack("<I", number * len(body)) + entry[46:] for number in range(count))
    return body * count + entries + _end(count, len(entries), len(body) * count)


def _end(entries: int, size: int, offset: int) -> bytes:
    return b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, entries & 0xFFFF, entries & 0xFFFF, size, offset, 0)


def _overlapping(count: int) -> bytes:
    """A zip whose entries all stand for the same bytes."""
    once = zipped(("a.bin", bytes(19 * MEGABYTE)))
    directory = once.index(b"PK\1\2")
    entries = once[directory:-22] * count
    return once[:directory] + entries + _end(count, len(entries), directory)


def _many_in_zip(count: int) -> bytes:
    once = zipped(("a", b""), method=zipfile.ZIP_STORED)
    directory = once.index(b"PK\1\2")
    entries = once[directory:-22] * count
    return once[:directory] + entries + _end(count, len(entries), directory)


def _many_in_tar(count: int) -> bytes:
    return gzip.compress(header("a", 0) * count + bytes(1024), 1)


def _flagged(flag: int) -> bytes:
    data = bytearray(zipped(("a.png", picture())))
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(signature) + offset] |= flag
    return bytes(data)


def _chain(length: int) -> bytes:
    return (header("x", 512, tarfile.XHDTYPE) + b"12 path=abc\n" + bytes(500)) * length + tarred(("a.png", b"x"))


def _sizes(size: int) -> bytes:
    """A zip whose directory says another size than the file has."""
    data = bytearray(zipped(("a.png", picture())))
    at = data.index(b"PK\1\2")
    data[at + 24 : at + 28] = struct.pack("<I", size)
    return bytes(data)


def _negative() -> bytes:
    return header("a.png", -512) + bytes(1024)


ZIPS = [
    Pack("climbing", lambda: zipped(("../../etc/a.png", b"x")), 400, "leaves the archive"),
    Pack("climbing in the middle", lambda: zipped(("a/../../b.png", b"x")), 400, "leaves the archive"),
    Pack("absolute", lambda: zipped(("/etc/a.png", b"x")), 400, "leaves the archive"),
    Pack("drive", lambda: zipped(("C:\\a.png", b"x")), 400, "leaves the archive"),
    Pack("climbing by backslashes", lambda: zipped(("..\\..\\a.png", b"x")), 400, "leaves the archive"),
    Pack("new line in a name", lambda: zipped(("a\nb.png", b"x")), 400, "control characters"),
    Pack("turned name", lambda: zipped(("a\u202egnp.exe", b"x")), 400, "control characters"),
    Pack("name of 10 kB", lambda: zipped(("x" * 10_000, b"x")), 400, "more than 1,000 characters"),
    Pack("symbolic link", lambda: zipped(("a.png", b"/etc/passwd"), attributes=stat.S_IFLNK | 0o777), 400, "a link"),
    Pack("named pipe", lambda: zipped(("a.png", b""), attributes=stat.S_IFIFO), 400, "a link or a device"),
    Pack("encrypted", lambda: _flagged(1), 400, "encrypted"),
    Pack("bzip2 inside", lambda: zipped(("a.png", picture()), method=zipfile.ZIP_BZIP2), 400, "unusual compression"),
    Pack("lzma inside", lambda: zipped(("a.png", picture()), method=zipfile.ZIP_LZMA), 400, "unusual compression"),
    Pack("zip in zip", _nested(zipped(("a", b"x"))), 400, "another archive"),
    Pack("gzip in zip", _nested(gzip.compress(b"x")), 400, "another archive"),
    Pack("tar in zip", _nested(tarred(("a", b"x"))), 400, "another archive"),
    Pack("xz in zip", _nested(lzma.compress(b"x")), 400, "another archive"),
    Pack("bzip2 in zip", _nested(bz2.compress(b"x")), 400, "another archive"),
    Pack("7-Zip in zip", _nested(b"7z\xbc\xaf\x27\x1c"), 400, "another archive"),
    Pack("rar in zip", _nested(b"Rar!\x1a\x07\x01"), 400, "another archive"),
    Pack("bomb", lambda: _zeros(8), 413, "unpacks to more than"),
    Pack("bomb that looks damaged", lambda: _zeros(8, break_checksum=True), 413, "unpacks to more than"),
    Pack("bomb of one file many times", lambda: _overlapping(3_000), 413, "unpacks to more than"),
    Pack("100,001 files", lambda: _many_in_zip(100_003), 413, "more than 100,002 files"),
    Pack("700,000 files", lambda: _many_in_zip(700_000), 413, "more than 100,002 files"),
    Pack("directory of 1 GB", lambda: b"PK\3\4" + bytes(100) + _end(9, 2**30, 0), 400, "cannot be read"),
    Pack("nothing", lambda: zipped(), 422, "holds no files"),
    Pack("hidden files only", lambda: zipped((".a.png", picture()), ("__MACOSX/a", b"x")), 422, "holds no files"),
    Pack("cut in half", lambda: zipped(("a.png", picture()))[:60], 400, "cannot be read"),
    Pack("another name inside", lambda: _renamed(b"a.png", b"b.png")[:20] + b"", 400, "cannot be read"),
    Pack("size that is too small", lambda: _sizes(3), 422, "none of the 1 images"),
    Pack("wrong checksum", lambda: _zeros(1, break_checksum=True), 422, "damaged inside the archive"),
    Pack("size of 4 GB", lambda: _sizes(2**32 - 2), 422, "larger than 67,108,864 bytes"),
    Pack("no pictures", lambda: zipped(("a.txt", b"x"), ("b.exe", b"MZ")), 422, "none of the 2 files"),
    Pack("program before it", lambda: b"MZ" + zipped(("a.png", picture())), 422, "none of the 1 files"),
]

TARS = [
    Pack("climbing", lambda: tarred(("../../etc/a.png", b"x")), 400, "leaves the archive"),
    Pack("absolute", lambda: tarred(("/etc/a.png", b"x")), 400, "leaves the archive"),
    Pack("new line in a name", lambda: tarred(("a\nb.png", b"x")), 400, "control characters"),
    Pack("name of 10 kB", lambda: tarred(("x" * 10_000, b"x")), 400, "more than 1,000 characters"),
    Pack("symbolic link", lambda: tarred(("a.png", b""), kind=tarfile.SYMTYPE), 400, "link"),
    Pack("hard link", lambda: tarred(("a.png", b""), kind=tarfile.LNKTYPE), 400, "link"),
    Pack("character device", lambda: tarred(("a.png", b""), kind=tarfile.CHRTYPE), 400, "device"),
    Pack("block device", lambda: tarred(("a.png", b""), kind=tarfile.BLKTYPE), 400, "device"),
    Pack("named pipe", lambda: tarred(("a.png", b""), kind=tarfile.FIFOTYPE), 400, "device"),
    Pack("sparse file", lambda: header("a.png", 512, tarfile.GNUTYPE_SPARSE) + bytes(1024), 400, "sparse"),
    Pack(
        "sparse file by extended header",
        lambda: tarred(("a.png", b"x"), pax={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
        400,
        "sparse",
    ),
    Pack("sparse file of a terabyte", lambda: tarred(("a", b""), pax={"GNU.sparse.size": str(2**40)}), 400, "sparse"),
    Pack("multi-volume", lambda: header("a.png", 512, b"M") + bytes(1024), 400, "plain files only"),
    Pack("long name that claims 900 MB", lambda: header("a", 9 * 10**8, tarfile.GNUTYPE_LONGNAME), 400, "header of"),
    Pack("extended header of 10 MB", lambda: _extended(b"9" * 10 * MEGABYTE), 400, "header of"),
    Pack("numbers that never end", lambda: _extended(b"9" * 60_000), 400, "a hundred digits"),
    Pack("extended header that is no header", lambda: _extended(b"\xff" * 512), 422, "none of the 1 images"),
    Pack("2,000 extended headers in a row", lambda: _chain(2_000), 400, "cannot be read"),
    Pack("negative size", _negative, 400, "header of -512 bytes"),
    Pack("negative size by extended header", lambda: tarred(("a", b"x"), pax={"size": "-5"}), 400, "archive"),
    Pack("cut inside a file", lambda: header("a.png", 9_000) + bytes(600), 400, "archive"),
    Pack("cut inside a header", lambda: tarred(("a.png", b"x"))[:1024] + header("b", 1)[:300], 400, "archive"),
    Pack("rubbish between files", lambda: tarred(("a.png", b"x"))[:1024] + b"?" * 512 + bytes(1024), 400, "damaged"),
    Pack("tar in tar", lambda: tarred(("a.png", tarred(("b", b"x")))), 400, "another archive"),
    Pack("zip in tar", lambda: tarred(("a.png", zipped(("b", b"x")))), 400, "another archive"),
    Pack("gzip bomb", lambda: gzip.compress(header("a", 80 * MEGABYTE) + bytes(80 * MEGABYTE), 1), 413, "unpacks to"),
    Pack("gzip of nothing", lambda: gzip.compress(b""), 400, "cannot be read"),
    Pack("gzip of a page", lambda: gzip.compress(b"<html>" * 200), 400, "archive"),
    Pack("gzip cut in half", lambda: gzip.compress(tarred(("a.png", picture())))[:90], 400, "cannot be read"),
    Pack(
        "gzip with a wrong checksum", lambda: gzip.compress(tarred(("a", b"x")))[:-8] + bytes(8), 400, "cannot be read"
    ),
    Pack("tar.bz2", lambda: bz2.compress(tarred(("a.png", picture()))), 422, "none of the 1 files"),
    Pack("tar.xz", lambda: lzma.compress(tarred(("a.png", picture()))), 422, "none of the 1 files"),
]

MANY_IN_TAR = Pack("100,003 files", lambda: _many_in_tar(100_003), 413, "more than 100,002 files")
