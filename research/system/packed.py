"""Text files that are stored packed: their names end in `.gz`, and packing the same text gives the same bytes."""

from __future__ import annotations

import gzip
from pathlib import Path


def read_text(path: Path) -> str:
    """The text of a file, packed or not."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def write_text(path: Path, text: str) -> None:
    """Write a file, packed if its name says so."""
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
