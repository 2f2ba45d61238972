"""Identify the GPU behind a torch device by nvidia-smi, without importing torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, MutableMapping

from shared.schemas.service import GpuInfo

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits")
_SECONDS = 10.0


def gpu_of(device: str) -> GpuInfo | None:
    """Return the GPU behind `cuda` or `cuda:N`; None for another device, or if nvidia-smi does not list it.

    `CUDA_VISIBLE_DEVICES` renumbers torch's devices, not those of nvidia-smi.
    """
    row = _row_of(device)
    if row is None or not row[3].isdigit():
        return None
    _, uuid, name, mebibytes, driver = row
    return GpuInfo(uuid=uuid, name=name, gigabytes=round(int(mebibytes) * 2**20 / 1e9, 2), driver=driver)


def see_one_gpu(device: str, environment: MutableMapping[str, str]) -> str:
    """Let this process see only the GPU of `device`, and return the name that the device then has.

    Some libraries use every visible GPU, or the first, and ignore the device that they are given. Call it before torch
    starts CUDA, with `os.environ`. `auto` is the first GPU, if there is one; any other device hides all GPUs.
    """
    kind, _, number = device.partition(":")
    if kind not in ("cuda", "auto"):
        environment["CUDA_VISIBLE_DEVICES"] = ""
        return device
    index = int(number or 0)
    if "CUDA_VISIBLE_DEVICES" in environment:
        visible = _visible(environment)  # empty if the operator hides all GPUs, which then stay hidden
        environment["CUDA_VISIBLE_DEVICES"] = visible[index] if index < len(visible) else ""
    else:
        environment["CUDA_VISIBLE_DEVICES"] = str(index)
    return "auto" if kind == "auto" else "cuda:0"


def _visible(environment: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]


def _row_of(device: str) -> list[str] | None:
    """The nvidia-smi row of a torch device: index, UUID, name, MiB of memory, driver."""
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return None
    try:
        output = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.count(",") == 4]
    visible = _visible(os.environ)
    index = int(number or 0)
    if visible and index >= len(visible):
        return None
    identifier = visible[index] if visible else str(index)
    return next((row for row in rows if identifier == row[0] or row[1].startswith(identifier)), None)
