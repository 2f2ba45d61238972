"""Renderings of small ControlNets: a photo, a batch key, items."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from diffusion_service.control_images import Source
from diffusion_service.editors.controlnet import BatchKey, Rendered, RenderItem
from diffusion_service.geometry import fit
from diffusion_service.loading import load
from diffusion_service.stable_diffusion import StableDiffusion
from shared.media.images import Pixels, digest
from shared.problems import Problem
from shared.profiles.weights import Dtype, Weights
from shared.schemas.diffusion import ControlStrength, Rendering

RANDOM = np.random.default_rng(5)


PHOTO = np.kron(RANDOM.integers(0, 256, (4, 4, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))


KEY = BatchKey(width=64, height=64, steps=3, guidance=4.0, controls=(ControlStrength(kind="canny"),))


def item(
    prompt: str = "A red car on a beach.", seed: int = 3, pixels: np.ndarray = PHOTO, **rendering: str
) -> RenderItem:
    source = Source(pixels, fit(64, 64, 64, 8), digest(pixels))
    return RenderItem(source, Rendering(prompt=prompt, seed=seed, **rendering), "")


def weights(folder: Path, dtype: Dtype = "float32") -> Weights:
    return Weights(path=folder, dtype=dtype, licence="none", gigabytes=0.01)


def load_networks(folder: Path, dtype: Dtype = "float32") -> StableDiffusion:
    """The networks that `write_diffusion` wrote, with their ControlNet for edges, on one thread."""
    torch.set_num_threads(1)
    return load(weights(folder / "base", dtype), {"canny": weights(folder / "control", dtype)}, device="cpu")


def images(rendered: Sequence[Rendered | Problem]) -> list[Pixels]:
    return [outcome.image for outcome in rendered if isinstance(outcome, Rendered)]
