"""Weights in Stable Diffusion's Hub layout (1.x, 2.x, XL) with a ControlNet, loaded from safetensors only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
)
from huggingface_hub import hf_hub_download
from torch import Tensor
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from diffusion_service.prompts import PromptEncoder
from shared.weights import Weights

# Schedulers that draw no noise of their own, so that an image follows from its seed alone.
SCHEDULERS = {
    cls.__name__: cls
    for cls in (
        DDIMScheduler,
        DPMSolverMultistepScheduler,
        EulerDiscreteScheduler,
        PNDMScheduler,
        UniPCMultistepScheduler,
    )
}


@dataclass(frozen=True, slots=True)
class StableDiffusion:
    """The networks and what follows from their configuration.

    `resolution` is the native size in pixels, `factor` the pixels per latent, `multiple` what sizes in pixels must
    divide by.
    """

    unet: UNet2DConditionModel
    controlnet: ControlNetModel
    vae: AutoencoderKL
    prompts: PromptEncoder
    scheduler: Any
    scheduler_config: Mapping[str, Any]
    resolution: int
    factor: int
    multiple: int
    device: torch.device
    dtype: torch.dtype

    def fresh_scheduler(self, steps: int) -> Any:
        """A scheduler of this batch's own (they keep state), set to `steps` steps."""
        scheduler = self.scheduler.from_config(self.scheduler_config)
        scheduler.set_timesteps(steps, device=self.device)
        return scheduler

    def noise(self, seed: int, width: int, height: int) -> Tensor:
        """The initial noise of one image (1 × channels × latent height × width), the same on every device."""
        shape = (1, self.unet.config.in_channels, height // self.factor, width // self.factor)
        generator = torch.Generator("cpu").manual_seed(seed)
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(self.device)

    def decode(self, latents: Tensor) -> Tensor:
        """Latents to images, batch × 3 × height × width in 0 … 1, one at a time: no image sees its neighbours."""
        shift = self.vae.config.shift_factor or 0.0
        scaled = (latents / self.vae.config.scaling_factor + shift).to(self.vae.dtype)
        images = torch.cat([self.vae.decode(latent[None]).sample.float() for latent in scaled])
        return (images / 2 + 0.5).clamp(0, 1)


def load(base: Weights, control: Weights, *, device: str, scheduler: str | None = None) -> StableDiffusion:
    """Load base weights and their ControlNet.

    `scheduler` overrides the class named in the weights by one of `SCHEDULERS`; the rest of its configuration stays.
    Raises ValueError when the scheduler is none of them, OSError when files are missing or not safetensors.
    """
    config = _read_json(base, "scheduler/scheduler_config.json")
    name = scheduler or str(config["_class_name"])
    if name not in SCHEDULERS:
        raise ValueError(f"scheduler {name} is not supported; choose one of {', '.join(sorted(SCHEDULERS))}")
    unet = _network(UNet2DConditionModel, base, "unet", device)
    vae = _network(AutoencoderKL, base, "vae", device)
    if device == "cpu" or vae.config.force_upcast:
        vae = vae.float()  # on CPUs half precision costs colour depth and saves no time; XL's decoder overflows in it
    factor = 2 ** (len(vae.config.block_out_channels) - 1)
    return StableDiffusion(
        unet=unet,
        controlnet=_network(ControlNetModel, control, "", device),
        vae=vae,
        prompts=_prompt_encoder(base, device),
        scheduler=SCHEDULERS[name],
        scheduler_config=config,
        resolution=int(unet.config.sample_size) * factor,
        factor=factor,
        multiple=factor * 2 ** (len(unet.config.block_out_channels) - 1),
        device=torch.device(device),
        dtype=getattr(torch, base.dtype),
    )


def _network(cls: Any, weights: Weights, subfolder: str, device: str) -> Any:
    network = cls.from_pretrained(
        weights.location,
        subfolder=_inside(weights, subfolder) or None,
        revision=weights.hub_revision,
        variant=weights.variant,
        torch_dtype=getattr(torch, weights.dtype),
        use_safetensors=True,
        low_cpu_mem_usage=False,  # True needs accelerate, and only spares memory that the weights take anyway
    )
    return network.to(device).to(memory_format=torch.channels_last).eval()


def _prompt_encoder(base: Weights, device: str) -> PromptEncoder:
    layout = _read_json(base, "model_index.json")
    encoders = {"": CLIPTextModel}
    if layout.get("text_encoder_2"):
        encoders["_2"] = CLIPTextModelWithProjection
    pairs = []
    for suffix, cls in encoders.items():
        tokenizer = CLIPTokenizer.from_pretrained(
            base.location, subfolder=_inside(base, f"tokenizer{suffix}"), revision=base.hub_revision
        )
        encoder = cls.from_pretrained(
            base.location,
            subfolder=_inside(base, f"text_encoder{suffix}"),
            revision=base.hub_revision,
            variant=base.variant,
            dtype=getattr(torch, base.dtype),
            use_safetensors=True,
        )
        pairs.append((tokenizer, encoder.to(device).eval()))
    return PromptEncoder(pairs, zero_empty=bool(layout.get("force_zeros_for_empty_prompt", False)))


def _read_json(weights: Weights, name: str) -> Mapping[str, Any]:
    if weights.path is None:
        path = Path(hf_hub_download(weights.location, _inside(weights, name), revision=weights.hub_revision))
    else:
        path = Path(weights.location, _inside(weights, name))
    return dict(json.loads(path.read_text()))


def _inside(weights: Weights, name: str) -> str:
    """A path within the weights, below their own subfolder."""
    return "/".join(part for part in (weights.subfolder, name) if part)
