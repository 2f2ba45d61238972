"""Run the networks of Stable Diffusion (1.x, 2.x, XL) with ControlNets; `loading.py` loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
from torch import Tensor
from torch.nn.functional import interpolate

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.attention import Injection
from diffusion_service.prompts import Conditioning, PromptEncoder
from diffusion_service.schedulers import Sampling
from shared.media.images import Pixels
from shared.problems import NotFinite
from shared.schemas.diffusion import ControlKind

NOT_FINITE = (
    "the generated image has NaN or infinity; set CONTRAFACT_DTYPE or CONTRAFACT_VAE_DTYPE to float32 or bfloat16"
)


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


def _emphasise(residual: Tensor, emphasis: Tensor) -> Tensor:
    """Multiply a UNet level's residual by the local weights."""
    return residual * interpolate(emphasis, residual.shape[-2:], mode="area").to(residual.dtype)
