"""Mixed precision for training and measuring: autocast to what the device computes natively, else none."""

from __future__ import annotations

import torch

from shared.arithmetic import native_dtype
from shared.service import ServiceSettings


def autocast(device: torch.device | str) -> torch.autocast:
    """A context in which matrices and convolutions run in native half precision; in float32 where there is none.

    `CONTRAFACT_DTYPE` overrides, as it does for the services.
    """
    kind = torch.device(device).type
    wanted = ServiceSettings().dtype
    name = native_dtype("bfloat16", str(device)) if wanted == "auto" else wanted
    if name == "float32":
        return torch.autocast(kind, enabled=False)
    return torch.autocast(kind, getattr(torch, name))
