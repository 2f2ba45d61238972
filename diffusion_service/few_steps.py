"""Load a profile's networks, and weights distilled to few steps: a whole UNet, or a LoRA merged into a second copy.

A few-step UNet shares all other networks (autoencoder, text encoders, ControlNets) with the base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.loading import load
from diffusion_service.schedulers import Sampling
from diffusion_service.stable_diffusion import StableDiffusion
from diffusion_service.unets import load_unet, merge, whole_unet
from shared.problems import InvalidInput
from shared.profiles.diffusion import Diffusion, FewStep
from shared.profiles.unets import Lora, WholeUNet
from shared.profiles.weights import Weights
from shared.service.load_progress import reading


@dataclass(frozen=True, slots=True)
class FewStepDiffusion:
    """Networks that render with exactly this number of steps and this guidance."""

    networks: StableDiffusion
    steps: int
    guidance: float


def load_few_step(
    few_step: FewStep,
    base: Weights,
    networks: StableDiffusion,
    unet: WholeUNet | None = None,
    loras: Sequence[Lora] = (),
) -> FewStepDiffusion:
    """Load the few-step weights, which share the base's loaded `networks`.

    A few-step LoRA is merged over the UNet that `networks` have: `unet` and `loras` are the profile's.
    Raises ValueError for weights or a scheduler that do not fit the base, OSError if files are missing.
    """
    device = str(networks.device)
    weights = few_step.weights
    with reading(weights):
        if isinstance(weights, Lora):
            few_unet = merge(weights, load_unet(base, unet, loras, device))
        else:
            few_unet = whole_unet(weights, networks.unet.config, base.dtype, device)
    sampling = Sampling.of(networks.sampling.config, few_step.scheduler, few_step.scheduler_options)
    student = replace(networks, unet=networks.acceleration.mark_for_compilation(few_unet), sampling=sampling)
    try:
        student.fresh_scheduler(few_step.steps)
    except InvalidInput as problem:  # reported at the start instead of at the first request
        raise ValueError(f"[diffusion.few_step]: {problem.detail}") from problem
    return FewStepDiffusion(student, few_step.steps, few_step.guidance)


def load_networks(profile: Diffusion, device: str, acceleration: Acceleration = OFF) -> StableDiffusion:
    """Load all networks that a profile's renderings use, except those of few steps. Raises as `load_few_step`."""
    return load(
        profile.base,
        profile.controlnets,
        device=device,
        scheduler=profile.scheduler,
        scheduler_options=profile.scheduler_options,
        vae=profile.vae,
        unet=load_unet(profile.base, profile.unet, profile.loras, device),
        acceleration=acceleration,
    )


def few_steps_of(profile: Diffusion, networks: StableDiffusion) -> FewStepDiffusion | None:
    """Load the profile's few-step weights, if it names some, over its loaded `networks`. Raises as `load_few_step`."""
    if profile.few_step is None:
        return None
    return load_few_step(profile.few_step, profile.base, networks, profile.unet, profile.loras)
