"""A file that reports its reading position, so that uploads can show their progress."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

Report = Callable[[int], None]


class CountedFile(io.BufferedReader):
    """A file opened for reading; after each read it calls `report` with its position in bytes.

    A request that is sent again seeks to the start, so the position may go back.
    """

    def __init__(self, path: Path, report: Report) -> None:
        """Raises OSError for a file that cannot be opened."""
        super().__init__(io.FileIO(path))
        self._report = report

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, all with -1, and report the position."""
        data = super().read(size)
        self._report(self.tell())
        return data
