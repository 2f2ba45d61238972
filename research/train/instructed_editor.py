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

from research.networks.half_precision import autocast
from research.networks.instructed_unet import few_step_unet, load_editor
from research.pictures.rendered_once import Pixels
from research.system.folders import weights_of
from research.train.autoencoder import WEIGHTS, to_model, to_pictures
from research.train.diffusion import text_states
from research.train.instruct import edited
from research.train.loop import device
from tinyworld.domain.names import Domain


@dataclass(frozen=True, slots=True)
class InstructedEditor:
    """The UNet with the networks that it shares with the domain's generator."""

    unet: UNet2DConditionModel
    vae: AutoencoderKL
    tokenizer: CLIPTokenizer
    text_encoder: CLIPTextModel

    @classmethod
    def of(cls, unet: UNet2DConditionModel, domain: Domain) -> Self:
        """An editor with this UNet."""
        on, words = device(), weights_of(domain) / "diffusion"
        return cls(
            unet.to(device=on, memory_format=torch.channels_last).eval(),
            AutoencoderKL.from_pretrained(WEIGHTS / "vae").float().to(on).eval(),
            CLIPTokenizer.from_pretrained(words / "tokenizer"),
            CLIPTextModel.from_pretrained(words / "text_encoder", dtype=torch.float32).to(on).eval(),
        )

    @classmethod
    def load(cls, folder: Path, domain: Domain) -> Self:
        """The editor in a folder that `save_editor` wrote. Raises OSError if a file is missing.

        The folder may lie anywhere; the base is the domain's shipped generator.
        """
        return cls.of(load_editor(folder, few_step_unet(weights_of(domain) / "diffusion")), domain)

    @torch.no_grad()
    def edit(self, sources: Sequence[Pixels], instructions: Sequence[str]) -> Pixels:
        """The pictures (n x 128 x 128 x 3) that the instructions make of the sources."""
        text = text_states(self.tokenizer, self.text_encoder, list(instructions))
        scale = float(self.vae.config.scaling_factor)
        with autocast(device()):
            source = self.vae.encode(to_model(np.stack(sources), device())).latent_dist.mode().float() * scale
        latents = edited(self.unet, source, text)
        with autocast(device()):
            decoded = self.vae.decode(latents / scale).sample
        return to_pictures(decoded)
