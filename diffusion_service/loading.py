"""Load weights in Stable Diffusion's Hub layout (1.x, 2.x, XL) with ControlNets, from safetensors only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
from huggingface_hub import hf_hub_download
from huggingface_hub.constants import HF_HUB_OFFLINE
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.prompts import PromptEncoder
from diffusion_service.schedulers import Sampling
from diffusion_service.stable_diffusion import StableDiffusion
from shared.profiles.weights import Weights
from shared.schemas.diffusion import ControlKind
from shared.service.load_progress import reading

Network = TypeVar("Network", bound=torch.nn.Module)


def load(
    base: Weights,
    controls: Mapping[ControlKind, Weights],
    *,
    device: str,
    scheduler: str | None = None,
    scheduler_options: Mapping[str, Any] | None = None,
    vae: Weights | None = None,
    unet: UNet2DConditionModel | None = None,
    acceleration: Acceleration = OFF,
) -> StableDiffusion:
    """Load base weights and their ControlNets, by kind of control.

    `vae` replaces the base's own autoencoder, as is usual for XL, whose own overflows in half precision.
    `unet` is a loaded UNet (`diffusion_service.unets`); by default the base's own.
    `scheduler` and `scheduler_options` override the scheduler class named in the weights and values of its
    configuration; the rest stays.
    Raises ValueError for an unsupported scheduler, OSError if files are missing or not safetensors.
    """
    with reading(base):
        sampling = Sampling.of(read_json(base, "scheduler/scheduler_config.json"), scheduler, scheduler_options)
        unet = unet or load_network(UNet2DConditionModel, base, "unet", device)
        prompts = _prompt_encoder(base, device)
    coder = _load_autoencoder(base, vae, device, acceleration)
    factor = 2 ** (len(coder.config.block_out_channels) - 1)
    nets = {kind: load_network(ControlNetModel, weights, "", device) for kind, weights in controls.items()}
    return StableDiffusion(
        unet=acceleration.mark_for_compilation(unet),
        controlnets={kind: acceleration.mark_for_compilation(network) for kind, network in nets.items()},
        vae=coder,
        prompts=prompts,
        sampling=sampling,
        resolution=int(unet.config.sample_size) * factor,
        factor=factor,
        multiple=factor * 2 ** (len(unet.config.block_out_channels) - 1),
        device=torch.device(device),
        dtype=getattr(torch, base.dtype),
        acceleration=acceleration,
    )


def _load_autoencoder(base: Weights, vae: Weights | None, device: str, acceleration: Acceleration) -> AutoencoderKL:
    coder = load_network(AutoencoderKL, vae or base, "" if vae else "vae", device)
    # Read from the file: the class defaults to True, but 1.x's files omit it and their autoencoder does not overflow.
    overflows = bool(read_json(vae or base, "config.json" if vae else "vae/config.json").get("force_upcast", False))
    # nn.Module's `to`, because diffusers' version warns about float32 layers, which this class does not have.
    return torch.nn.Module.to(coder, acceleration.coder_dtype(coder.dtype, device, overflows))


def load_network(cls: Any, weights: Weights, subfolder: str, device: str) -> Any:
    """Load a network of a diffusers class, from a subfolder of the weights (or their root), for inference."""
    with reading(weights):
        network = cls.from_pretrained(
            weights.location,
            subfolder=_inside(weights, subfolder) or None,
            revision=weights.hub_revision,
            variant=weights.variant,
            torch_dtype=getattr(torch, weights.dtype),
            use_safetensors=True,
            local_files_only=HF_HUB_OFFLINE,  # else sharded weights are looked up on the Hub even offline
            low_cpu_mem_usage=False,  # True needs accelerate and saves no memory beyond that of the weights
        )
        return for_inference(network.to(device))


def for_inference(network: Network) -> Network:
    """Lay a network's parameters out as `channels_last`, and turn off training and gradients."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch declares no overload for it
    return network.eval().requires_grad_(False)


def _prompt_encoder(base: Weights, device: str) -> PromptEncoder:
    layout = read_json(base, "model_index.json")
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


def local_file(weights: Weights, name: str) -> Path:
    """The path of one file of the weights, below their subfolder; from the Hub's cache, or downloaded into it."""
    if weights.path is None:
        return Path(hf_hub_download(weights.location, _inside(weights, name), revision=weights.hub_revision))
    return Path(weights.location, _inside(weights, name))


def read_json(weights: Weights, name: str) -> Mapping[str, Any]:
    """A JSON file of the weights; see `local_file`."""
    return dict(json.loads(local_file(weights, name).read_text()))


def _inside(weights: Weights, name: str) -> str:
    """A path within the weights, below their own subfolder."""
    return "/".join(part for part in (weights.subfolder, name) if part)
