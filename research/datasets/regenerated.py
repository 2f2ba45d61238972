"""Latents that a generator makes of pictures we know, with its typical errors: what a decoder can learn to repair.

The latent of a picture, noised to one of the last steps of sampling and denoised again under its caption and edges.
"""

from __future__ import annotations

import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, DDIMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from numpy.typing import NDArray
from torch import Tensor
from transformers import CLIPTextModel, CLIPTokenizer

from research.datasets.captioned_pictures import PICTURE_DOMAINS, album
from research.pictures.augmentation import as_pixel_values
from research.pictures.control_edges import edges_of
from research.pictures.rendered_once import Pixels
from research.system.folders import RUNS, WEIGHTS, weights_of
from tinyworld.domain.scenes import Split

STEPS = 12
LEFT = (2, 3, 4, 5)  # steps to go, of these
GUIDANCE = 2.5


def regenerated(domain: str, split: Split, count: int) -> tuple[Pixels, NDArray[np.float32]]:
    """The first `count` pictures of a split and their regenerated latents (n x 5 x 32 x 32), cached."""
    data = album(domain, split, count)
    path = RUNS / "cache" / f"{domain}-{split}-regenerated-{count}.npy"
    if not path.exists():
        painter, describe = _Painter(domain), PICTURE_DOMAINS[domain].describe
        captions = [describe(scene, seed).text for seed, scene in enumerate(data.scenes)]
        places = np.array_split(np.arange(count), -(-count // 8))
        made = [painter.latents(data.images[p], [captions[i] for i in p], LEFT[n % len(LEFT)], n)
                for n, p in enumerate(places)]  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.concatenate(made))
    stored: NDArray[np.float32] = np.load(path)
    return data.images, stored


class _Painter:
    """The published generator of a domain, with its ControlNet of edges."""

    def __init__(self, domain: str) -> None:
        folder = weights_of(domain) / "diffusion"
        self.vae = AutoencoderKL.from_pretrained(WEIGHTS / "diffusion" / "vae").float()
        self.unet = UNet2DConditionModel.from_pretrained(folder / "unet").float()
        self.controlnet = ControlNetModel.from_pretrained(folder / "controlnet").float()
        for network in (self.unet, self.controlnet):
            network.set_attn_processor(AttnProcessor())
        self.tokenizer = CLIPTokenizer.from_pretrained(folder / "tokenizer")
        self.text_encoder = CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.float32)
        self.sampler = DDIMScheduler.from_pretrained(folder / "scheduler")

    @torch.no_grad()
    def latents(self, images: Pixels, captions: list[str], left: int, seed: int) -> NDArray[np.float32]:
        """Latents of the images after the last `left` steps of guided sampling."""
        edges = np.stack([edges_of(image, np.zeros(image.shape[:2], np.uint8), "full") for image in images])
        shown = torch.from_numpy(edges).float()[:, None].expand(-1, 3, -1, -1).repeat(2, 1, 1, 1)
        text = self._states([""] * len(captions) + captions)
        self.sampler.set_timesteps(STEPS)
        times = self.sampler.timesteps[-left:]
        latents: Tensor = self.vae.encode(as_pixel_values(images)).latent_dist.mean * self.vae.config.scaling_factor
        noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(seed))
        latents = self.sampler.add_noise(latents, noise, times[:1])
        for time in times:
            twice = torch.cat([latents, latents])
            down, middle = self.controlnet(twice, time, text, controlnet_cond=shown, return_dict=False)
            velocity = self.unet(
                twice, time, text, down_block_additional_residuals=down, mid_block_additional_residual=middle
            ).sample
            without, conditional = velocity.chunk(2)
            latents = self.sampler.step(without + GUIDANCE * (conditional - without), time, latents).prev_sample
        return np.asarray((latents / self.vae.config.scaling_factor).numpy(), np.float32)

    def _states(self, texts: list[str]) -> Tensor:
        length = self.tokenizer.model_max_length
        ids = self.tokenizer(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        states: Tensor = self.text_encoder(ids.input_ids).last_hidden_state
        return states
