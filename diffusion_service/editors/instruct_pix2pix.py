"""Edit an image by an instruction with a UNet that also sees the source (InstructPix2Pix, arXiv 2211.09800).

The source's latents are further input channels. Guidance has two scales (equation 3): how closely the image follows the
instruction, and how closely the source. A step takes three network evaluations, one without guidance. The layout is
that of diffusers' `StableDiffusionInstructPix2PixPipeline`: the source's latents are not scaled, and zeros where there
is no source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from diffusion_service.control_images import Source
from diffusion_service.geometry import fit, to_model
from diffusion_service.loading import load
from diffusion_service.schedulers import Sampling
from diffusion_service.stable_diffusion import StableDiffusion
from diffusion_service.unets import merge, whole_unet, with_input_layer
from shared.media.images import Pixels, digest
from shared.problems import InvalidInput, NotFinite
from shared.profiles.instruct import InstructPix2Pix
from shared.schemas.diffusion import InstructRequest
from shared.service.load_progress import reading


@dataclass(frozen=True, slots=True)
class InstructKey:
    """Edits with equal keys share a batch: size in pixels, steps, guidance."""

    width: int
    height: int
    steps: int
    guidance: float
    image_guidance: float


@dataclass(frozen=True, slots=True)
class InstructItem:
    """One image to edit."""

    source: Source
    instruction: str
    seed: int


class UNetEditor(Protocol):
    """An editor of the kind whose edits share batches: InstructPix2Pix's layout or one step (`one_step.py`)."""

    networks: StableDiffusion

    def key(self, request: InstructRequest, source: Source) -> InstructKey: ...
    def warm_up(self, side: int) -> None: ...
    def edit(self, key: InstructKey, items: Sequence[InstructItem]) -> list[Pixels | NotFinite]: ...


def fitted(networks: StableDiffusion, pixels: Pixels) -> Source:
    """A source image of any size, brought to the model's size."""
    height, width = pixels.shape[:2]
    geometry = fit(width, height, networks.resolution, networks.multiple)
    return Source(to_model(pixels, geometry), geometry, digest(pixels))


def black(networks: StableDiffusion, side: int) -> Source:
    """A black source image of this side, for a warm-up."""
    pixels = np.zeros((side, side, 3), np.uint8)
    return Source(pixels, fit(side, side, side, networks.multiple), digest(pixels))


def readable(networks: StableDiffusion, instruction: str) -> bool:
    """Whether the text encoder reads the whole instruction."""
    try:
        return networks.prompts.fit(instruction) == instruction
    except InvalidInput:
        return False


def load_pix2pix(
    profile: InstructPix2Pix, networks: StableDiffusion, few_step: StableDiffusion | None = None
) -> StableDiffusion:
    """The networks of the editor, which shares `networks` (the base's) unless the profile names a whole pipeline.

    A first layer of the profile is for `few_step`, if there is one, else for the base. Raises ValueError for weights
    that are not of this layout, OSError if files are missing.
    """
    editing = _pipeline(profile, networks) if profile.weights else _beside(profile, networks, few_step)
    latents = editing.vae.config.latent_channels
    if editing.unet.config.in_channels != 2 * latents:
        raise ValueError(
            f"[diffusion.instruct] needs a UNet with {2 * latents} input channels, the latents and the source's; this "
            f"one has {editing.unet.config.in_channels}"
        )
    if editing.unet.config.addition_embed_type is not None:
        raise ValueError("instruct-pix2pix takes UNets of Stable Diffusion 1.x and 2.x; this one is of XL")
    for lora in profile.loras:
        with reading(lora):
            editing = replace(editing, unet=merge(lora, editing.unet))
    return replace(editing, unet=editing.acceleration.mark_for_compilation(editing.unet))


def _pipeline(profile: InstructPix2Pix, networks: StableDiffusion) -> StableDiffusion:
    """The networks of a whole pipeline."""
    assert profile.weights is not None
    device, options = str(networks.device), profile.scheduler_options
    editing = load(profile.weights, {}, device=device, scheduler=profile.scheduler, scheduler_options=options)
    return replace(editing, acceleration=networks.acceleration)


def _beside(profile: InstructPix2Pix, networks: StableDiffusion, few_step: StableDiffusion | None) -> StableDiffusion:
    """The base's networks, or those of few steps, with a UNet that also sees the source."""
    if profile.conv_in is not None and few_step is not None:
        networks = few_step
    config = {**networks.unet.config, "in_channels": 2 * networks.vae.config.latent_channels}
    if profile.conv_in is not None:
        with reading(profile.conv_in):
            unet = with_input_layer(profile.conv_in, networks.unet, config)
    else:
        assert profile.unet is not None  # the profile's schema
        with reading(profile.unet):
            unet = whole_unet(profile.unet, config, profile.unet.dtype, str(networks.device))
    sampling = networks.sampling
    if profile.scheduler or profile.scheduler_options:
        sampling = Sampling.of(sampling.config, profile.scheduler, profile.scheduler_options)
    return replace(networks, unet=unet, controlnets={}, sampling=sampling)


class InstructPix2PixEditor:
    """The editor `instruct` with InstructPix2Pix's layout: edits any number of sources at once."""

    def __init__(self, networks: StableDiffusion) -> None:
        self.networks = networks
        self._latents = lru_cache(maxsize=32)(self._compute_latents)

    def key(self, request: InstructRequest, source: Source) -> InstructKey:
        """What the edits of a request have in common."""
        width, height = source.geometry.padded
        return InstructKey(width, height, request.steps, request.guidance, request.image_guidance)

    def warm_up(self, side: int) -> None:
        """Edit one image of this side with guidance."""
        source = black(self.networks, side)
        key = InstructKey(side, side, steps=1, guidance=2.0, image_guidance=1.5)
        self.edit(key, [InstructItem(source, "warm-up", 0)])

    @torch.inference_mode()
    def edit(self, key: InstructKey, items: Sequence[InstructItem]) -> list[Pixels | NotFinite]:
        """One image at the model's size (height × width × 3) per item."""
        return self.networks.pictures(self._denoise(key, items))

    def _denoise(self, key: InstructKey, batch: Sequence[InstructItem]) -> Tensor:
        """The latents of all images."""
        networks, passes = self.networks, evaluations_per_step(key.guidance)
        encode = networks.prompts.encode
        states = torch.stack([encode(item.instruction).states for item in batch])
        sources = torch.cat([self._latents(item.source) for item in batch])
        if passes > 1:  # with the instruction, with the source only, with neither
            nothing = torch.stack([encode("").states] * len(batch))
            states, sources = torch.cat([states, nothing, nothing]), torch.cat([sources, sources, 0 * sources])
        scheduler = networks.fresh_scheduler(key.steps)
        arguments = networks.sampling.step_arguments([item.seed for item in batch])
        noise = torch.cat([networks.noise(item.seed, key.width, key.height) for item in batch])
        latents: Tensor = noise * scheduler.init_noise_sigma
        for time in scheduler.timesteps:
            inputs = scheduler.scale_model_input(torch.cat([latents] * passes), time)
            predicted = networks.predict(torch.cat([inputs, sources], dim=1), time, states, None, [])
            if passes > 1:
                full, image, neither = predicted.chunk(passes)
                predicted = neither + key.guidance * (full - image) + key.image_guidance * (image - neither)
            latents = scheduler.step(predicted, time, latents, return_dict=False, **arguments)[0]
        return latents

    def _compute_latents(self, source: Source) -> Tensor:
        """The source's latents without the autoencoder's scaling (1 × channels × height × width)."""
        config = self.networks.vae.config
        scaled = self.networks.encode(source.image)
        latents: Tensor = scaled / float(config.scaling_factor) + float(config.shift_factor or 0.0)
        return latents


def evaluations_per_step(guidance: float) -> int:
    """Network evaluations of one step: three with guidance, one without."""
    return 3 if guidance > 1 else 1
