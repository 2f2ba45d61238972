"""Run an editor that follows instructions, in this process: pictures and instructions in, pictures out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from diffusion_service.steps import Steps
from tinyworld.domain.names import Domain
from tinyworld.networks.half_precision import autocast
from tinyworld.networks.instructed_unet import few_step_unet, load_editor
from tinyworld.pictures.rendered_once import Pixels
from tinyworld.system.folders import weights_of
from tinyworld.train.autoencoder import LATENT_CHANNELS, WEIGHTS, to_model, to_pictures
from tinyworld.train.diffusion import text_states
from tinyworld.train.distil_diffusion import SAMPLER
from tinyworld.train.instruct import velocity
from tinyworld.train.loop import device


@dataclass(frozen=True, slots=True)
class InstructedEditor:
    """The UNet with the networks that it shares with the domain's generator. `steps`: network evaluations per image."""

    unet: UNet2DConditionModel
    vae: AutoencoderKL
    tokenizer: CLIPTokenizer
    text_encoder: CLIPTextModel
    steps: int

    @classmethod
    def of(cls, unet: UNet2DConditionModel, domain: Domain, steps: int) -> Self:
        """An editor with this UNet."""
        on, words = device(), weights_of(domain) / "diffusion"
        return cls(
            unet.to(device=on, memory_format=torch.channels_last).eval(),
            AutoencoderKL.from_pretrained(WEIGHTS / "vae").float().to(on).eval(),
            CLIPTokenizer.from_pretrained(words / "tokenizer"),
            CLIPTextModel.from_pretrained(words / "text_encoder", dtype=torch.float32).to(on).eval(),
            steps,
        )

    @classmethod
    def load(cls, folder: Path, domain: Domain, steps: int) -> Self:
        """The editor in a folder that `save_editor` wrote, for a number of steps. Raises OSError if a file is missing.

        The folder may lie anywhere; the base is the domain's shipped generator.
        """
        return cls.of(load_editor(folder, few_step_unet(weights_of(domain) / "diffusion")), domain, steps)

    @torch.no_grad()
    def edit(self, sources: Sequence[Pixels], instructions: Sequence[str], seeds: Sequence[int]) -> Pixels:
        """The pictures (n x 128 x 128 x 3) that the instructions make of the sources, by DDIM from the seeds' noise."""
        on, steps = device(), Steps.of(SAMPLER, self.steps)
        shape = (1, LATENT_CHANNELS, 32, 32)
        noise = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        latents = torch.cat(noise).to(on)
        text = text_states(self.tokenizer, self.text_encoder, list(instructions))
        with autocast(on):
            source = self.vae.encode(to_model(np.stack(sources), on)).latent_dist.mode().float()
        for step, time in enumerate(steps.times):
            times = torch.full((len(latents),), time, device=on)
            latents = steps.down(step, latents, velocity(self.unet, latents, source, times, text))
        with autocast(on):
            decoded = self.vae.decode(latents / self.vae.config.scaling_factor).sample
        return to_pictures(decoded)
