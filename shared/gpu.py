"""Which GPU a torch device is, asked of NVIDIA's own command, so that nothing here needs torch."""

from __future__ import annotations

import os
import subprocess
from functools import cache

from shared.schemas.service import GpuInfo

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,compute_cap", "--format=csv,noheader,nounits")
_SECONDS = 10.0


def gpu_of(device: str) -> GpuInfo | None:
    """The GPU behind `cuda` or `cuda:N`; None for another device, or where nvidia-smi does not know it.

    `CUDA_VISIBLE_DEVICES` renumbers torch's devices, not those of nvidia-smi.
    """
    row = _row_of(device)
    if row is None or not row[3].isdigit():
        return None
    _, uuid, name, mebibytes, _ = row
    return GpuInfo(uuid=uuid, name=name, gigabytes=round(int(mebibytes) * 2**20 / 1e9, 2))


@cache
def compute_capability(device: str) -> float | None:
    """NVIDIA's compute capability of a GPU (8.0 is Ampere's first); None where nvidia-smi does not know it."""
    row = _row_of(device)
    try:
        return None if row is None else float(row[4])
    except ValueError:
        return None


def _row_of(device: str) -> list[str] | None:
    """What nvidia-smi says of a torch device: index, UUID, name, MiB of memory, compute capability."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    try:
        listed = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[field.strip() for field in line.split(",")] for line in listed.splitlines() if line.count(",") == 4]
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    place = int(number or 0)
    if visible and place >= len(visible):
        return None
    wanted = visible[place] if visible else str(place)
    return next((row for row in rows if wanted == row[0] or row[1].startswith(wanted)), None)
