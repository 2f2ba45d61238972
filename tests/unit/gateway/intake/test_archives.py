"""Archives: valid ones are read exactly, and malformed ones end in a problem document."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.intake.archive_members import ArchiveLimits
from gateway.intake.archives import Member, members, open_members
from shared.media.archives import is_archive
from shared.problems import Malformed, Problem, TooLarge
from tests.support.hostile.packs import tarred, zipped

LIMITS = ArchiveLimits(files=50, file_bytes=100_000, total_bytes=1_000_000)
NAMES = st.text(alphabet="abcXYZ09 _-ä漢\u202f\u200d", min_size=1, max_size=12).map(lambda name: f"{name}.png")
FILES = st.lists(st.tuples(NAMES, st.binary(max_size=2_000).map(lambda data: b"\x89" + data)), min_size=1, max_size=8)


def tarred_one(info: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(info)
    return packed.getvalue()


def read(packed: bytes, limits: ArchiveLimits = LIMITS) -> list[Member]:
    return list(members(io.BytesIO(packed), limits))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(files=FILES)
def test_files_come_out_as_they_went_in(files: list[tuple[str, bytes]]) -> None:
    expected = [Member(name, data) for name, data in files]
    assert read(zipped(*files)) == expected
    assert read(tarred(*files)) == expected
    assert read(gzip.compress(tarred(*files))) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(max_examples=150)
@given(kind=st.sampled_from(["zip", "tar", "tgz"]), files=FILES, data=st.data())
def test_damage_is_a_problem_never_a_crash(kind: str, files: list[tuple[str, bytes]], data: st.DataObject) -> None:
    packed = zipped(*files) if kind == "zip" else tarred(*files)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(packed) - 1))
        packed = packed[:at] + data.draw(st.binary(max_size=4)) + packed[at + data.draw(st.integers(0, 4)) :]
    packed = packed[: data.draw(st.integers(0, len(packed)))]
    packed = gzip.compress(packed) if kind == "tgz" else packed
    try:
        for member in members(io.BytesIO(packed), LIMITS):
            assert member.data is not None or member.problem
    except Problem as problem:  # refused, which is the other good outcome
        assert problem.status in (400, 413)  # noqa: PT017


@pytest.mark.parametrize(
    "name", ["../a.png", "a/../../b.png", "/etc/a.png", "C:\\a.png", "..\\a.png", "a\x07.png", "x" * 1_001]
)
def test_names_that_leave_the_archive_are_refused(name: str) -> None:
    with pytest.raises(Malformed):
        read(zipped((name, b"x")))
    with pytest.raises(Malformed):
        read(tarred((name, b"x")))


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE],
)
def test_links_and_devices_in_a_tar_are_refused(kind: bytes) -> None:
    info = tarfile.TarInfo("a.png")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(Malformed, match="plain files only"):
        read(tarred_one(info))


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_are_refused(mode: int) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        info = zipfile.ZipInfo("a.png")
        info.external_attr = (mode | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(Malformed, match="link or a device"):
        read(packed.getvalue())


def test_archives_in_archives_are_refused() -> None:
    for inner in (zipped(("a", b"x")), tarred(("a", b"x")), gzip.compress(b"x")):
        with pytest.raises(Malformed, match="another archive"):
            read(zipped(("inner.png", inner)))
    for document in ("labels.xlsx", "readme.docx", "features.npz"):
        assert read(zipped((document, zipped(("a", b"x"))))), "a document is left out, and was refused"


def test_a_large_archive_in_an_archive_is_named_for_what_it_is() -> None:
    """It was "the file is larger than 1,000 bytes; shrink it"."""
    for inner in (zipped(("a", os.urandom(2_000))), tarred(("a", os.urandom(2_000)))):
        for outer in (zipped(("data/train.zip", inner)), tarred(("data/train.zip", inner))):
            with pytest.raises(Malformed, match=r"another archive, 'data/train.zip'; unpack it first"):
                read(outer, ArchiveLimits(files=50, file_bytes=1_000, total_bytes=1_000_000))
    with pytest.raises(Malformed, match="unpack the gzip"):
        read(gzip.compress(zipped(("a", b"x"))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stored", "deflated", "tar", "tgz"])
def test_a_large_file_passes_through_in_pieces(kind: str) -> None:
    """A zip with a member of more than 32 MiB was refused, and every member was held in memory."""
    size = 40 * 1024**2
    data = np.random.default_rng(0).bytes(size)
    if kind in ("stored", "deflated"):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("model.safetensors", data)
            archive.writestr("config.json", b"{}")
    else:
        tar = tarred(("model.safetensors", data), ("config.json", b"{}"))
        packed = io.BytesIO(tar if kind == "tar" else gzip.compress(tar, 1))
    expected = [hashlib.sha256(data).hexdigest(), hashlib.sha256(b"{}").hexdigest()]
    tracemalloc.start()
    digests = []
    for member in open_members(packed, ArchiveLimits(50, 2 * size, 2 * size)):
        assert member.content is not None
        digest = hashlib.sha256()
        while piece := member.content.read(1024**2):
            digest.update(piece)
        digests.append(digest.hexdigest())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert digests == expected
    assert peak < 8 * 1024**2


def test_hidden_files_and_junk_are_left_out() -> None:
    files = [("__MACOSX/._a.png", b"x"), ("set/.DS_Store", b"x"), ("set/Thumbs.db", b"x"), ("set/a.png", b"x")]
    assert [member.name for member in read(zipped(*files))] == ["set/a.png"]


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_one_file_too_large_fails_alone(pack: Callable[..., bytes]) -> None:
    large, small = read(pack(("large.png", bytes(100_001)), ("small.png", b"x")))
    assert large.data is None
    assert "larger than 100,000 bytes" in large.problem
    assert small == Member("small.png", b"x")


def test_a_file_damaged_in_a_zip_fails_alone() -> None:
    packed = zipped(("a.png", b"first picture"), ("b.png", b"second picture"))
    packed = packed.replace(zipfile.zlib.compress(b"first picture", wbits=-15), bytes(15), 1)  # type: ignore[attr-defined]
    first, second = read(packed)
    assert first.data is None
    assert "damaged" in first.problem
    assert second.data == b"second picture"


def test_a_tar_damaged_in_the_middle_is_not_taken_for_a_shorter_one() -> None:
    packed = bytearray(tarred(("a.png", b"x"), ("b.png", b"y")))
    packed[1024:1100] = b"?" * 76
    with pytest.raises(Malformed, match="damaged in the middle"):
        read(bytes(packed))


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_too_many_files_and_too_many_bytes_are_refused(pack: Callable[..., bytes]) -> None:
    with pytest.raises(TooLarge, match="more than 50 files"):
        read(pack(*((f"{i}.png", b"x") for i in range(51))))
    with pytest.raises(TooLarge, match="unpacks to more"):
        read(pack(*((f"{i}.png", bytes(90_000)) for i in range(12))))


def test_bombs_are_refused_early() -> None:
    roomy = ArchiveLimits(files=10, file_bytes=2 * 10**9, total_bytes=2 * 10**9)
    bomb = gzip.compress(tarred(("a.png", bytes(80 * 1024**2))), 9)
    assert len(bomb) < 200_000
    with pytest.raises(TooLarge, match="67,108,864 bytes"):
        read(bomb, roomy)
    header = tarfile.TarInfo("a.png")  # a header that claims a name of 900 MB
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 900_000_000
    with pytest.raises(Problem):
        read(header.tobuf(tarfile.GNU_FORMAT) + bytes(10_240))


def test_archives_are_known_by_their_first_bytes() -> None:
    assert is_archive(io.BytesIO(zipped()))
    assert is_archive(io.BytesIO(tarred(("a", b""))))
    assert is_archive(io.BytesIO(gzip.compress(b"")))
    assert not is_archive(io.BytesIO(b"\x89PNG\r\n\x1a\n"))
    with pytest.raises(Malformed, match="neither zip"):
        read(b"hello")
