"""Mixed precision for training and evaluation: autocast to bfloat16 where the device computes it natively."""

from __future__ import annotations

import torch

from shared.profiles.arithmetic import native_dtype
from shared.service.settings import ServiceSettings


def autocast(device: torch.device | str) -> torch.autocast:
    """A context in which matrices and convolutions run in bfloat16 where it is native, in float32 elsewhere.

    `CONTRAFACT_DTYPE` overrides, as it does for the services.
    """
    kind = torch.device(device).type
    setting = ServiceSettings().dtype
    name = native_dtype(torch, "bfloat16", str(device)) if setting == "auto" else setting
    if name != "bfloat16":  # float16 would lose small gradients without loss scaling
        return torch.autocast(kind, enabled=False)
    return torch.autocast(kind, torch.bfloat16)
