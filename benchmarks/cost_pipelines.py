"""DILLEMA's rendering as a plain diffusers loop: `StableDiffusionControlNetPipeline`, one image at a time.

This is the obvious use of diffusers: weights by `from_pretrained` in single precision, and for every sibling one call
of the pipeline with a separate control image. The pipeline encodes prompt and empty prompt again in every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import ControlNetModel, StableDiffusionControlNetPipeline
from PIL import Image
from torch import nn

from diffusion_service.control_images import ControlImages, Source
from diffusion_service.geometry import fit, to_model
from diffusion_service.schedulers import SCHEDULERS
from diffusion_service.segmentation import Segmenter
from shared.media.images import Pixels, digest
from shared.profiles.diffusion import Diffusion
from shared.profiles.profile import Profile
from shared.schemas.diffusion import Rendering


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Scheduler, steps and guidance; `scheduler` None means the weights' own scheduler."""

    name: str
    scheduler: str | None
    steps: int
    guidance: float

    def __str__(self) -> str:
        return f"{self.scheduler or 'own scheduler'}, {self.steps} steps, guidance {self.guidance:g}"


# The settings of DILLEMA's published code; the paper prints no sampler.
PUBLISHED_CODE = LoopSettings("published code", "UniPCMultistepScheduler", 5, 7.5)
# The best settings for the tiny weights (research/docs/editing.md): the same loop at equal judged quality.
TINY_TEACHER = LoopSettings("weights' own", None, 16, 2.5)


def paper_settings(paper: Profile) -> LoopSettings:
    """The settings of profile `paper`, with the usual number of UniPC steps for Stable Diffusion 1.5."""
    parameters = paper.methods["dillema"]
    return LoopSettings(
        "profile paper", paper.diffusion.scheduler, int(str(parameters["steps"])), float(str(parameters["guidance"]))
    )


class PipelineLoop:
    """One set of weights in a public pipeline."""

    def __init__(self, diffusion: Diffusion, segmenter: Segmenter | None, device: str) -> None:
        """Load the base and its ControlNet for edges."""
        base, control = diffusion.base, diffusion.controlnets["canny"]
        common: dict[str, Any] = {"use_safetensors": True, "low_cpu_mem_usage": False}
        controlnet = ControlNetModel.from_pretrained(
            control.location, subfolder=control.subfolder or None, revision=control.hub_revision,
            variant=control.variant, **common,
        )  # fmt: skip
        pipeline = StableDiffusionControlNetPipeline.from_pretrained(
            base.location, revision=base.hub_revision, variant=base.variant, controlnet=controlnet,
            safety_checker=None, **common,
        )  # fmt: skip
        pipeline.set_progress_bar_config(disable=True)
        self.pipeline = pipeline.to(device, torch.float32)
        self._own_scheduler = pipeline.scheduler
        self.segmenter = segmenter

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The networks by role."""
        p = self.pipeline
        return {
            "unet": p.unet, "controlnet": p.controlnet, "encoder": p.vae.encoder, "decoder": p.vae.decoder,
            "text encoder 0": p.text_encoder,
        }  # fmt: skip

    def source(self, pixels: Pixels) -> Source:
        """The source image of these pixels, at the size of our editor."""
        p = self.pipeline
        factor = 2 ** (len(p.vae.config.block_out_channels) - 1)
        multiple = factor * 2 ** (len(p.unet.config.block_out_channels) - 1)
        height, width = pixels.shape[:2]
        geometry = fit(width, height, int(p.unet.config.sample_size) * factor, multiple)
        return Source(to_model(pixels, geometry), geometry, digest(pixels))

    def render(self, source: Source, renderings: Sequence[Rendering], how: LoopSettings) -> list[Pixels]:
        """The renderings of a source, one after the other, at the model's size."""
        config = self._own_scheduler.config
        scheduler = SCHEDULERS[how.scheduler] if how.scheduler else type(self._own_scheduler)
        self.pipeline.scheduler = scheduler.from_config(config)
        return [self._sibling(source, rendering, how) for rendering in renderings]

    def _sibling(self, source: Source, rendering: Rendering, how: LoopSettings) -> Pixels:
        control = ControlImages(self.segmenter).image(source, "canny", rendering.region)
        output = self.pipeline(
            rendering.prompt,
            image=Image.fromarray(control).convert("RGB"),
            num_inference_steps=how.steps,
            guidance_scale=how.guidance,
            generator=torch.Generator("cpu").manual_seed(rendering.seed),
            output_type="np",
        )
        pixels: Pixels = (output.images[0] * 255).round().astype("uint8")
        return pixels
