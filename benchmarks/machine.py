"""The machine that a benchmark ran on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The processor's name according to the operating system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()
