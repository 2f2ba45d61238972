"""Edit an image by an instruction in one network evaluation, with a UNet that predicts what changes.

After pix2pix-turbo (Parmar et al., arXiv 2403.12036, section 3.1): the source's latents take the place of the noise, at
a fixed time step, so that the trained layers see the picture and no new input channels have to be learnt. Here the
output is the change of the latents, so that the editor need not learn to copy what stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from diffusers import DDIMScheduler

from diffusion_service.control_images import Source
from diffusion_service.editors.instruct_pix2pix import InstructItem, InstructKey, black
from diffusion_service.stable_diffusion import StableDiffusion
from diffusion_service.unets import copied, merge
from shared.media.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.profiles.instruct import OneStep
from shared.schemas.diffusion import InstructRequest
from shared.service.load_progress import reading


def load_one_step(profile: OneStep, networks: StableDiffusion) -> OneStepEditor:
    """The editor over a copy of the UNet of `networks`, with the profile's LoRAs merged into it.

    Raises ValueError for a UNet, a LoRA or a time that does not fit, OSError if files are missing.
    """
    if networks.unet.config.addition_embed_type is not None:
        raise ValueError("one-step takes UNets of Stable Diffusion 1.x and 2.x; this one is of XL")
    if profile.time >= (length := int(networks.sampling.config["num_train_timesteps"])):
        raise ValueError(f"[diffusion.instruct] `time` is {profile.time}; use one from 0 to {length - 1}")
    unet = copied(networks.unet, networks.unet.config)
    for lora in profile.loras:
        with reading(lora):
            unet = merge(lora, unet)
    editing = replace(networks, unet=networks.acceleration.mark_for_compilation(unet), controlnets={})
    return OneStepEditor(editing, profile.time)


class OneStepEditor:
    """The editor `instruct` in one step: edits any number of sources at once."""

    def __init__(self, networks: StableDiffusion, time: int) -> None:
        self.networks, self._time = networks, time
        schedule = DDIMScheduler.from_config(networks.sampling.config)
        self._level = float(schedule.alphas_cumprod[time]) ** 0.5  # of an image without noise at this time

    def key(self, request: InstructRequest, source: Source) -> InstructKey:
        """What the edits of a request have in common. Raises InvalidInput for several steps, or guidance."""
        if request.steps != 1 or request.guidance != 1:
            raise InvalidInput("this editor takes one step without guidance; set steps = 1 and guidance = 1")
        width, height = source.geometry.padded
        return InstructKey(width, height, steps=1, guidance=1.0, image_guidance=1.0)

    def warm_up(self, side: int) -> None:
        """Edit one image of this side."""
        item = InstructItem(black(self.networks, side), "warm-up", 0)
        self.edit(InstructKey(side, side, 1, 1.0, 1.0), [item])

    @torch.inference_mode()
    def edit(self, _: InstructKey, items: Sequence[InstructItem]) -> list[Pixels | NotFinite]:
        """One image at the model's size (height × width × 3) per item."""
        networks = self.networks
        states = torch.stack([networks.prompts.encode(item.instruction).states for item in items])
        sources = torch.cat([networks.encode(item.source.image) for item in items])
        change = networks.predict(self._level * sources, self._time, states, None, [])
        return networks.pictures(sources + change)
