"""Identify the GPU behind a torch device by nvidia-smi, without importing torch."""

from __future__ import annotations

import os
import subprocess

from shared.schemas.service import GpuInfo

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_SECONDS = 10.0


def gpu_of(device: str) -> GpuInfo | None:
    """Return the GPU behind `cuda` or `cuda:N`; None for another device, or if nvidia-smi does not list it.

    `CUDA_VISIBLE_DEVICES` renumbers torch's devices, not those of nvidia-smi.
    """
    row = _row_of(device)
    if row is None or not row[3].isdigit():
        return None
    _, uuid, name, mebibytes = row
    return GpuInfo(uuid=uuid, name=name, gigabytes=round(int(mebibytes) * 2**20 / 1e9, 2))


def _row_of(device: str) -> list[str] | None:
    """The nvidia-smi row of a torch device: index, UUID, name, MiB of memory."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    try:
        output = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.count(",") == 3]
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    index = int(number or 0)
    if visible and index >= len(visible):
        return None
    identifier = visible[index] if visible else str(index)
    return next((row for row in rows if identifier == row[0] or row[1].startswith(identifier)), None)
