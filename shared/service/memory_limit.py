"""How much memory the container of this process may use. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from shared.service.threads import CGROUP

_UNLIMITED = 2**60  # version 1 writes a number near 2**63 for no limit


def container_memory(cgroup: Path = CGROUP) -> int | None:
    """The container's memory limit in bytes, by cgroup version 2 or 1; None for no limit."""
    for path in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() and int(text) < _UNLIMITED else None
    return None
