"""Renderings of small ControlNets: a photo, a batch key, items."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diffusion_service.control_images import Source
from diffusion_service.editors.controlnet import BatchKey, Rendered, RenderItem
from diffusion_service.geometry import fit
from shared.images import digest
from shared.problems import InvalidInput
from shared.schemas.diffusion import ControlStrength, Rendering
from shared.weights import Dtype, Weights

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


def images(rendered: list[Rendered | InvalidInput]) -> list[np.ndarray]:
    return [outcome.image for outcome in rendered if isinstance(outcome, Rendered)]
