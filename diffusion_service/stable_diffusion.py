"""Load and run weights in Stable Diffusion's Hub layout (1.x, 2.x, XL) with ControlNets, from safetensors only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
from huggingface_hub import hf_hub_download
from huggingface_hub.constants import HF_HUB_OFFLINE
from torch import Tensor
from torch.nn.functional import interpolate
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.attention import Injection
from diffusion_service.prompts import Conditioning, PromptEncoder
from diffusion_service.schedulers import Sampling
from shared.images import Pixels
from shared.load_progress import reading
from shared.problems import NotFinite
from shared.schemas.diffusion import ControlKind
from shared.weights import Weights

NOT_FINITE = (
    "the generated image has NaN or infinity; set CONTRAFACT_DTYPE or CONTRAFACT_VAE_DTYPE to float32 or bfloat16"
)
Network = TypeVar("Network", bound=torch.nn.Module)


@dataclass(frozen=True, slots=True)
class Control:
    """Control images of one kind as batch × 3 × height × width in 0 … 1, and their weight.

    `emphasis` (batch × 1 × height × width) multiplies that weight locally.
    """

    images: Tensor
    scale: float
    kind: ControlKind = "canny"
    emphasis: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StableDiffusion:
    """The networks and the sizes that follow from their configuration.

    `resolution` is the native size in pixels and `factor` the pixels per latent. All sizes in pixels are multiples of
    `multiple`.
    """

    unet: UNet2DConditionModel
    controlnets: Mapping[ControlKind, ControlNetModel]
    vae: AutoencoderKL
    prompts: PromptEncoder
    sampling: Sampling
    resolution: int
    factor: int
    multiple: int
    device: torch.device
    dtype: torch.dtype
    acceleration: Acceleration = OFF

    def fresh_scheduler(self, steps: int) -> Any:
        """Create a scheduler for one batch (they keep state), set to `steps` steps."""
        return self.sampling.start(steps, self.device)

    def noise(self, seed: int, width: int, height: int) -> Tensor:
        """The initial noise of one image (1 × channels × latent height × width), the same on every device."""
        shape = (1, self.vae.config.latent_channels, height // self.factor, width // self.factor)
        generator = torch.Generator("cpu").manual_seed(seed)
        noise = torch.randn(shape, generator=generator, dtype=torch.float32)
        return self.acceleration.move(noise, self.device)

    def control(self, images: Sequence[Pixels], scale: float, kind: ControlKind = "canny") -> Control:
        """Build a ControlNet's input from control images, grey or RGB, one per row of a batch."""
        batch = self.acceleration.move(torch.from_numpy(np.stack(images)), self.device).to(self.dtype).div(255)
        coloured = batch[:, None].expand(-1, 3, -1, -1) if batch.ndim == 3 else batch.permute(0, 3, 1, 2)
        return Control(coloured, scale, kind)

    def shared_self_attention(self, latent_positions: int) -> int:
        """The most positions of a layer whose self-attention an edit takes from its source (prompt-to-prompt).

        The finest layers, 64² positions at the native resolution, stay the target's own, as in the authors' code for
        1.x. XL has them at a quarter of the latent's positions, since the first level of its UNet has no attention.
        """
        return latent_positions // (16 if self.unet.config.addition_embed_type == "text_time" else 4)

    def added_conditions(self, prompts: Sequence[Conditioning], width: int, height: int) -> dict[str, Tensor] | None:
        """Additional inputs of XL's UNet: the pooled states of the prompts, and sizes; None for 1.x and 2.x."""
        pooled = [prompt.pooled for prompt in prompts if prompt.pooled is not None]
        if not pooled:
            return None
        # Original size, crop offset, target size.
        sizes = torch.tensor([height, width, 0, 0, height, width], device=self.device, dtype=self.dtype)
        return {"text_embeds": torch.stack(pooled).to(self.dtype), "time_ids": sizes.expand(len(prompts), -1)}

    def predict(
        self,
        latents: Tensor,
        time: Tensor | int,
        states: Tensor,
        added: dict[str, Tensor] | None,
        controls: Sequence[Control],
        injection: Injection | None = None,
    ) -> Tensor:
        """One forward pass: the UNet's output for a batch of latents, in single precision.

        `states` are batch × tokens × width. Without `controls` the UNet runs alone; the outputs of several ControlNets
        are summed, as diffusers' MultiControlNetModel does. `injection` applies to the attention layers of the UNet,
        not to those of the ControlNets. Passes with it, and those outside inference mode (inversion), are never
        compiled.
        """
        speed = self.acceleration
        plain = injection is None and torch.is_inference_mode_enabled()
        time = torch.as_tensor(time, device=self.device)  # a Python number would cause a recompilation at every step
        speed.start_step()
        with speed.kernels(), nullcontext() if plain else speed.eagerly():
            predicted = self._forward(latents, time, states, added, controls, injection)
        return speed.copy_output(predicted).float()

    def _forward(
        self,
        latents: Tensor,
        time: Tensor,
        states: Tensor,
        added: dict[str, Tensor] | None,
        controls: Sequence[Control],
        injection: Injection | None,
    ) -> Tensor:
        inputs = latents.to(self.dtype).contiguous(memory_format=torch.channels_last)
        states = states.to(self.dtype)
        residuals: dict[str, Any] = {}
        for control in controls:
            down, middle = self.controlnets[control.kind](
                inputs, time, encoder_hidden_states=states, controlnet_cond=control.images,
                conditioning_scale=control.scale, added_cond_kwargs=added, return_dict=False,
            )  # fmt: skip
            if control.emphasis is not None:
                down, middle = (
                    [_emphasise(residual, control.emphasis) for residual in down],
                    _emphasise(middle, control.emphasis),
                )
            if residuals:
                before = residuals["down_block_additional_residuals"]
                down = [residual + added_residual for residual, added_residual in zip(before, down, strict=True)]
                middle = residuals["mid_block_additional_residual"] + middle
            residuals = {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
        predicted: Tensor = self.unet(
            inputs, time, encoder_hidden_states=states, added_cond_kwargs=added, return_dict=False,
            cross_attention_kwargs=None if injection is None else {"injection": injection}, **residuals,
        )[0]  # fmt: skip
        if injection is not None:
            injection.check_reached()
        return predicted

    def encode(self, image: Pixels) -> Tensor:
        """Latents (1 × channels × latent height × width, single precision) of an image of height × width × 3.

        It is the mean of the encoder's distribution, so nothing is random.
        """
        copied = self.acceleration.move(torch.from_numpy(image), self.device)
        pixels = copied.permute(2, 0, 1)[None].to(self.vae.dtype) / 127.5 - 1
        mean: Tensor = self.vae.encode(pixels).latent_dist.mode().float()
        shift, scale = float(self.vae.config.shift_factor or 0.0), float(self.vae.config.scaling_factor)
        return (mean - shift) * scale

    def decode(self, latents: Tensor) -> Tensor:
        """Decode latents to images, batch × 3 × height × width in 0 … 1, one at a time: images are independent.

        An image with NaN or infinity (possible in half precision) becomes NaN throughout.
        """
        shift = self.vae.config.shift_factor or 0.0
        scaled = (latents / self.vae.config.scaling_factor + shift).to(self.vae.dtype)
        images = torch.cat([self.vae.decode(latent[None]).sample.float() for latent in scaled])
        images[~images.isfinite().all(dim=(1, 2, 3))] = torch.nan  # `clamp` would turn infinity into white or black
        return (images / 2 + 0.5).clamp(0, 1)

    def pictures(self, latents: Tensor) -> list[Pixels | NotFinite]:
        """Decode latents to pixels, height × width × 3 each; NotFinite in place of an image with NaN or infinity."""
        images = self.decode(latents)
        finite = images.isfinite().all(dim=(1, 2, 3)).tolist()
        pixels = images.nan_to_num().mul(255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
        return [picture if good else NotFinite(NOT_FINITE) for picture, good in zip(pixels, finite, strict=True)]


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
        unet=acceleration.compiled(unet),
        controlnets={kind: acceleration.compiled(network) for kind, network in nets.items()},
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


def _emphasise(residual: Tensor, emphasis: Tensor) -> Tensor:
    """Multiply a UNet level's residual by the local weights."""
    return residual * interpolate(emphasis, residual.shape[-2:], mode="area").to(residual.dtype)


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
