"""Zips and tars of small files."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from typing import Literal


def zipped(files: Mapping[str, bytes], inside: str = "", compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of the files, each with `inside` before its name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(inside + name, data)
    return packed.getvalue()


def tarred(files: Mapping[str, bytes], inside: str = "", mode: Literal["w", "w:gz"] = "w") -> bytes:
    """A tar of the files, each with `inside` before its name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, data in files.items():
            header = tarfile.TarInfo(inside + name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return packed.getvalue()
