"""Images after a round trip through the generator's autoencoder, the degradation of every generated image."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import torch
from diffusers import AutoencoderKL

from research.networks.half_precision import autocast
from research.objects.pictures import Pictures
from research.pictures.augmentation import as_pixel_values
from research.pictures.rendered_once import Pixels
from research.system.folders import RUNS, WEIGHTS
from shared.chunks import chunks

_VAE = WEIGHTS / "diffusion" / "vae"


def with_round_trips(data: Pictures, name: str, count: int) -> Pictures:
    """The images, followed by the first `count` of them after a round trip of the autoencoder."""
    return replace(
        data,
        scenes=data.scenes + data.scenes[:count],
        images=np.concatenate([data.images, round_trips(data.images, name, count)]),
        masks=np.concatenate([data.masks, data.masks[:count]]),
        targets=torch.cat([data.targets, data.targets[:count]]),
    )


def round_trips(images: Pixels, name: str, count: int) -> Pixels:
    """The first `count` images (n × 128 × 128 × 3) after a round trip of the autoencoder, cached."""
    path = RUNS / "cache" / f"{name}-round-trips-{count}-{_digest(images)}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, through_autoencoder(images[:count]))
    restored: Pixels = np.load(path)
    return restored


@torch.no_grad()
def through_autoencoder(images: Pixels) -> Pixels:
    """Pictures (n × 128 × 128 × 3) encoded and decoded by the shipped autoencoder."""
    vae = AutoencoderKL.from_pretrained(_VAE, torch_dtype=torch.float32).eval()
    batches = []
    for chunk in chunks(images, 20):
        values = as_pixel_values(chunk)
        with autocast("cpu"):
            restored = vae.decode(vae.encode(values).latent_dist.mode()).sample.float()
        pixels = restored.permute(0, 2, 3, 1).add(1).mul(127.5).round().clamp(0, 255)
        batches.append(pixels.numpy().astype(np.uint8))
    return np.concatenate(batches)


def _digest(images: Pixels) -> str:
    hasher = hashlib.sha256(np.ascontiguousarray(images[:4]).tobytes())
    hasher.update((_VAE / "diffusion_pytorch_model.safetensors").read_bytes())
    return hasher.hexdigest()[:8]
