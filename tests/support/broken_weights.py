"""Weights that give NaN, as half precision does when it overflows."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def spoil(folder: Path, tensor: str) -> None:
    """Write NaN into the tensors of a folder's weights whose names contain `tensor`; raises ValueError if none does."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    names = [name for name in tensors if tensor in name]
    if not names:
        raise ValueError(f"no tensor is named {tensor!r}")
    for name in names:
        tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, path, metadata={"format": "pt"})
