"""How many threads a model may compute with: the cores that this process may use. Does not import torch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores that this process may use, at least 1: its affinity, capped by the container's CPU limit (rounded up).

    By default torch uses every core of the host and ignores the container's limit; its threads then wait for each
    other.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = _cpu_limit(cgroup)
    return max(1, affinity if limit is None else min(affinity, math.ceil(limit)))


def _cpu_limit(cgroup: Path) -> float | None:
    """The container's CPU limit in cores, by cgroup version 2 or 1; None for no limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not (quota.isdigit() and period.isdigit() and int(period)):  # "max" and -1 are no limit
        return None
    return int(quota) / int(period)


def openmp_threads(environment: Mapping[str, str] = os.environ) -> int | None:
    """The threads that `OMP_NUM_THREADS` allows (of a list, the outermost level's); None if it is no positive number.

    torch reads the variable itself. Use this function to choose threads before torch is imported.
    """
    text = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) or None if text.isdecimal() else None


def compute_threads(threads: int, default: int) -> int:
    """Threads of a model service: `threads`, or if it is 0, the library's `default` capped at `usable_cores`."""
    return threads or min(default, usable_cores())
