"""Text-to-image diffusion under control of the source's edges (DILLEMA's fifth step; ControlNet, arXiv 2302.05543).

Every image has its own seed, prompt, negative prompt and control, so any renderings of equal `BatchKey` can share a
batch. Controls, masks and encoded prompts are computed once per source and prompt and kept for the siblings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from diffusion_service import conditioning
from diffusion_service.geometry import Fit, fit, to_model
from diffusion_service.prompts import Conditioning
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import StableDiffusion
from shared.images import Pixels, digest
from shared.problems import InvalidInput
from shared.schemas.diffusion import ControlRegion, Rendering


@dataclass(frozen=True, slots=True)
class Source:
    """A source image at the model's size (height × width × 3), and the way back; equal where all pixels are equal."""

    image: Pixels = field(compare=False, repr=False)
    geometry: Fit
    digest: str


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What renderings must agree on to be computed together: size in pixels, steps, guidance, control scale."""

    width: int
    height: int
    steps: int
    guidance: float
    control_scale: float


@dataclass(frozen=True, slots=True)
class RenderItem:
    """One image to render."""

    source: Source
    rendering: Rendering
    negative_prompt: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """Image, control and mask (255: must stay) at the model's size, the prompt as it was read, and the cost."""

    image: Pixels
    control: Pixels
    keep: Pixels | None
    prompt: str
    evaluations: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    prompt: str
    wanted: Conditioning
    unwanted: Conditioning
    control: Pixels
    keep: Pixels | None
    seed: int


class ControlNetEditor:
    """The editor `controlnet`: owns the networks; `render` must be called from one thread only."""

    def __init__(self, weights: StableDiffusion, segmenter: Segmenter | None) -> None:
        """Without a segmenter only the control region `full` can be rendered."""
        self._weights = weights
        self._segmenter = segmenter
        self._keep = lru_cache(maxsize=64)(self._compute_keep)
        self._control = lru_cache(maxsize=64)(self._compute_control)

    @property
    def regions(self) -> tuple[ControlRegion, ...]:
        """The control regions that can be rendered."""
        return ("full",) if self._segmenter is None else ("full", "structure", "object")

    def source(self, pixels: Pixels) -> Source:
        """The source image of these pixels, of any size."""
        height, width = pixels.shape[:2]
        geometry = fit(width, height, self._weights.resolution, self._weights.multiple)
        return Source(to_model(pixels, geometry), geometry, digest(pixels))

    def control(self, source: Source, region: ControlRegion) -> Pixels:
        """The control image of a source; raises InvalidInput where the region cannot be found."""
        return self._control(source, region)

    def keep(self, source: Source) -> Pixels | None:
        """The mask of what must stay in a source; None without a segmenter."""
        return self._keep(source)

    def render(self, key: BatchKey, items: Sequence[RenderItem]) -> list[Rendered | InvalidInput]:
        """One image, or why it cannot be rendered, per item."""
        prepared = [self._prepare(item) for item in items]
        ready = [one for one in prepared if isinstance(one, _Prepared)]
        if not ready:
            return [one for one in prepared if isinstance(one, InvalidInput)]
        # A refused item's place is filled, so that the shape of the batch (and so its bits) stays.
        images, evaluations = self._denoise(key, [one if isinstance(one, _Prepared) else ready[0] for one in prepared])
        return [
            one
            if isinstance(one, InvalidInput)
            else Rendered(image=image, control=one.control, keep=one.keep, prompt=one.prompt, evaluations=evaluations)
            for one, image in zip(prepared, images, strict=True)
        ]

    def _prepare(self, item: RenderItem) -> _Prepared | InvalidInput:
        try:
            prompt = self._weights.prompts.fitted(item.rendering.prompt)
            unwanted = self._weights.prompts.encode(self._weights.prompts.fitted(item.negative_prompt))
            control, keep = self._control(item.source, item.rendering.region), self._keep(item.source)
        except InvalidInput as problem:
            return problem
        wanted = self._weights.prompts.encode(prompt)
        return _Prepared(prompt, wanted, unwanted, control, keep, item.rendering.seed)

    def _compute_keep(self, source: Source) -> Pixels | None:
        return None if self._segmenter is None else self._segmenter.keep_mask(source.image)

    def _compute_control(self, source: Source, region: ControlRegion) -> Pixels:
        return _edges(source.image, region, self._keep(source))

    @torch.inference_mode()
    def _denoise(self, key: BatchKey, batch: Sequence[_Prepared]) -> tuple[list[Pixels], int]:
        """Images (height × width × 3, at the model's size) and network evaluations per image."""
        weights = self._weights
        guided = key.guidance > 1
        prompts = ([one.unwanted for one in batch] if guided else []) + [one.wanted for one in batch]
        states = torch.stack([prompt.states for prompt in prompts])
        added = weights.added(prompts, key.width, key.height)
        control = weights.control([one.control for one in batch] * (2 if guided else 1), key.control_scale)
        scheduler = weights.fresh_scheduler(key.steps)
        latents = torch.cat([weights.noise(one.seed, key.width, key.height) for one in batch])
        latents = latents * scheduler.init_noise_sigma
        for time in scheduler.timesteps:
            inputs = scheduler.scale_model_input(torch.cat([latents, latents]) if guided else latents, time)
            predicted = weights.predict(inputs, time, states, added, control)
            if guided:
                unconditional, conditional = predicted.chunk(2)
                predicted = unconditional + key.guidance * (conditional - unconditional)
            latents = scheduler.step(predicted, time, latents, return_dict=False)[0]
        return weights.pictures(latents), len(scheduler.timesteps) * (2 if guided else 1)


def _edges(image: Pixels, region: ControlRegion, keep: Pixels | None) -> Pixels:
    """The control image of a region, at the size of `image`."""
    if region == "full":
        return conditioning.canny(image)
    if keep is None:
        raise InvalidInput(
            f"control region {region!r} needs a segmenter, and this profile has none; use region 'full', or name one"
        )
    if region == "structure":
        return conditioning.structure(image, keep)
    if not keep.any():
        raise InvalidInput("the segmenter found nothing in this image that must stay; use region 'full' or 'structure'")
    return conditioning.object_region(conditioning.canny(image), keep)
