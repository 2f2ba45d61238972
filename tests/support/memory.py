"""The memory of this process, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


class PeakMemory:
    """How much memory the process has needed at most since this was created, beyond what it held then."""

    def __init__(self) -> None:
        self._before = _bytes_of("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forget the highest mark

    def growth(self) -> int:
        """Bytes."""
        return _bytes_of("VmHWM") - self._before


def _bytes_of(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1]) * 1024
