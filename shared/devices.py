"""How a model service sets torch up. The module `torch` is passed in: nothing here imports it."""

from __future__ import annotations

from types import ModuleType

from shared.service import ServiceSettings
from shared.threads import compute_threads


def choose_device(torch: ModuleType, name: str) -> str:
    """`auto` is the first GPU if there is one; other names are torch's own (`cpu`, `cuda:1`, ...)."""
    if name != "auto":
        return name
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def prepare_torch(torch: ModuleType, settings: ServiceSettings) -> str:
    """Set threads and determinism as the settings have them; returns the device to load weights on."""
    torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
    torch.backends.cudnn.deterministic = settings.deterministic
    return choose_device(torch, settings.device)
