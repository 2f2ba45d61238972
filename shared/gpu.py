"""Which GPU a torch device is, asked of NVIDIA's own command, so that nothing here needs torch."""

from __future__ import annotations

import os
import subprocess

from shared.schemas.service import GpuInfo

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_SECONDS = 10.0


def gpu_of(device: str) -> GpuInfo | None:
    """The GPU behind `cuda` or `cuda:N`; None for another device, or where nvidia-smi does not know it.

    `CUDA_VISIBLE_DEVICES` renumbers torch's devices, not those of nvidia-smi.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    try:
        listed = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[field.strip() for field in line.split(",")] for line in listed.splitlines() if line.count(",") == 3]
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    place = int(number or 0)
    if visible and place >= len(visible):
        return None
    wanted = visible[place] if visible else str(place)
    for index, uuid, name, mebibytes in rows:
        if (wanted == index or uuid.startswith(wanted)) and mebibytes.isdigit():
            return GpuInfo(uuid=uuid, name=name, gigabytes=round(int(mebibytes) * 2**20 / 1e9, 2))
    return None
