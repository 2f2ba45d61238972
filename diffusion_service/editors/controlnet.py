"""Text-to-image diffusion under control of the source's structure (DILLEMA's fifth step; ControlNet, arXiv 2302.05543).

Every image has its own seed, prompt, negative prompt, control images and protected regions, so any renderings of equal
`BatchKey` can share a batch. Controls, masks and encoded prompts are cached per source and prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from diffusion_service.control_images import ControlImages, Source
from diffusion_service.few_steps import FewStepDiffusion
from diffusion_service.geometry import fit, to_model
from diffusion_service.prompts import Conditioning
from diffusion_service.protection import Region, Shape, find_regions, region_outcomes, restore_shapes, soft_mask
from diffusion_service.schedulers import steps_until_kept
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import Control, StableDiffusion
from shared.media.images import Pixels, digest
from shared.problems import InvalidInput, NotFinite
from shared.schemas.diffusion import Controls, Protection, RegionOutcome, Rendering


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Renderings with equal keys share a batch: size in pixels, steps, guidance, controls."""

    width: int
    height: int
    steps: int
    guidance: float
    controls: Controls


@dataclass(frozen=True, slots=True)
class RenderItem:
    """One image to render."""

    source: Source
    rendering: Rendering
    negative_prompt: str
    protection: Protection | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """Image, controls and mask (255: must not change) at the model's size, the prompt as it was read, and the cost.

    `controls` are in the order of the key's; `regions` are the source's protected regions, `outcomes` their outcomes.
    """

    image: Pixels
    controls: tuple[Pixels, ...]
    keep: Pixels | None
    prompt: str
    evaluations: int
    regions: tuple[Region, ...] = ()
    outcomes: tuple[RegionOutcome, ...] = ()


@dataclass(frozen=True, slots=True)
class _Prepared:
    prompt: str
    conditioning: Conditioning
    negative_conditioning: Conditioning
    controls: tuple[Pixels, ...]
    keep: Pixels | None
    seed: int
    source: Source
    protection: Protection | None
    regions: tuple[Region, ...]


class ControlNetEditor:
    """The editor `controlnet`: renders any number of batches at once.

    `few_step`, if given, renders the requests that have exactly its number of steps and its guidance.
    """

    def __init__(
        self,
        weights: StableDiffusion,
        images: ControlImages | Segmenter | None,
        few_step: FewStepDiffusion | None = None,
    ) -> None:
        """`images` computes control images. A segmenter alone supports only edges, None only the region `full`."""
        self._weights = weights
        self._few_step = few_step
        self.images = images if isinstance(images, ControlImages) else ControlImages(images)
        self._regions = lru_cache(maxsize=64)(self._compute_regions)
        self._latents = lru_cache(maxsize=32)(self._compute_latents)

    def source(self, pixels: Pixels) -> Source:
        """Bring a source image of any size to the model's size."""
        height, width = pixels.shape[:2]
        geometry = fit(width, height, self._weights.resolution, self._weights.multiple)
        return Source(to_model(pixels, geometry), geometry, digest(pixels))

    def prepare(self, key: BatchKey, items: Sequence[RenderItem]) -> None:
        """Compute what `render` needs beside networks, in another thread than theirs, and keep it."""
        for item in items:
            self.images.prepare(item.source, [strength.kind for strength in key.controls], [item.rendering.region])
            for text in (item.rendering.prompt, item.negative_prompt):
                with suppress(InvalidInput):  # `render` refuses the item
                    self._weights.prompts.fit(text)

    def render(self, key: BatchKey, items: Sequence[RenderItem]) -> list[Rendered | InvalidInput | NotFinite]:
        """One image, or why it cannot be rendered, per item."""
        prepared = [self._prepare(key, item) for item in items]
        ready = [row for row in prepared if isinstance(row, _Prepared)]
        if not ready:
            return [row for row in prepared if isinstance(row, InvalidInput)]
        # A refused item is replaced, so that the shape of the batch (and so its bits) does not change.
        images, evaluations = self._denoise(key, [row if isinstance(row, _Prepared) else ready[0] for row in prepared])
        return [
            row if isinstance(row, InvalidInput) else self._render(row, image, evaluations)
            for row, image in zip(prepared, images, strict=True)
        ]

    def _prepare(self, key: BatchKey, item: RenderItem) -> _Prepared | InvalidInput:
        source, protection = item.source, item.protection
        try:
            prompt = self._weights.prompts.fit(item.rendering.prompt)
            negative_conditioning = self._weights.prompts.encode(self._weights.prompts.fit(item.negative_prompt))
            controls = tuple(
                self.images.image(source, strength.kind, item.rendering.region) for strength in key.controls
            )
            regions = () if protection is None else self._regions(source, protection.classes)
        except InvalidInput as problem:
            return problem
        conditioning, keep = self._weights.prompts.encode(prompt), self.images.keep(source)
        return _Prepared(
            prompt,
            conditioning,
            negative_conditioning,
            controls,
            keep,
            item.rendering.seed,
            source,
            protection,
            regions,
        )

    def _render(self, prepared: _Prepared, image: Pixels | NotFinite, evaluations: int) -> Rendered | NotFinite:
        if isinstance(image, NotFinite):
            return image
        rendered = Rendered(image, prepared.controls, prepared.keep, prepared.prompt, evaluations, prepared.regions)
        segmenter = self.images.segmenter
        if not prepared.regions or segmenter is None:
            return rendered
        try:
            label_map = segmenter.label_map(image)
        except NotFinite as problem:
            return problem
        return replace(rendered, outcomes=region_outcomes(prepared.regions, label_map, segmenter.labels, image))

    def _compute_regions(self, source: Source, classes: tuple[str, ...]) -> tuple[Region, ...]:
        label_map = self.images.labels(source)
        return tuple(find_regions(label_map, self.images.segmenter.labels if self.images.segmenter else (), classes))

    @torch.inference_mode()
    def _compute_latents(self, source: Source) -> Tensor:
        return self._weights.encode(source.image)

    def _networks(self, key: BatchKey) -> StableDiffusion:
        few_step = self._few_step
        fits = few_step is not None and (few_step.steps, few_step.guidance) == (key.steps, key.guidance)
        return few_step.networks if few_step is not None and fits else self._weights

    @torch.inference_mode()
    def _denoise(self, key: BatchKey, batch: Sequence[_Prepared]) -> tuple[list[Pixels | NotFinite], int]:
        """Images (height × width × 3, at the model's size) and network evaluations per image."""
        weights = self._networks(key)
        guided = key.guidance > 1
        prompts = ([item.negative_conditioning for item in batch] if guided else []) + [
            item.conditioning for item in batch
        ]
        states = torch.stack([prompt.states for prompt in prompts])
        added = weights.added_conditions(prompts, key.width, key.height)
        controls = self._controls(key, batch, repeats=2 if guided else 1)
        scheduler = weights.fresh_scheduler(key.steps)
        arguments = weights.sampling.step_arguments([item.seed for item in batch])
        times = scheduler.timesteps
        noise = [weights.noise(item.seed, key.width, key.height) for item in batch]
        latents = torch.cat(noise) * scheduler.init_noise_sigma
        shapes = {row: shape for row, item in enumerate(batch) if (shape := self._shape(item, noise[row], scheduler))}
        for step, time in enumerate(times):
            inputs = scheduler.scale_model_input(torch.cat([latents, latents]) if guided else latents, time)
            active = [
                control
                for control, strength in zip(controls, key.controls, strict=True)
                if strength.holds(step, len(times))
            ]
            predicted = weights.predict(inputs, time, states, added, active)
            if guided:
                unconditional, conditional = predicted.chunk(2)
                predicted = unconditional + key.guidance * (conditional - unconditional)
            before, latents = latents, scheduler.step(predicted, time, latents, return_dict=False, **arguments)[0]
            if any(step < shape.until for shape in shapes.values()):
                latents = restore_shapes(shapes, step, scheduler, before, predicted, latents)
        return weights.pictures(latents), len(times) * (2 if guided else 1)

    def _controls(self, key: BatchKey, batch: Sequence[_Prepared], repeats: int) -> list[Control]:
        """The inputs of each ControlNet; the edges of protected regions weigh more if the request says so."""
        weights = self._weights
        controls = [
            weights.control([row.controls[index] for row in batch] * repeats, strength.scale, strength.kind)
            for index, strength in enumerate(key.controls)
        ]
        extra = [row.protection.strength if row.protection and row.protection.by == "edges" else 0.0 for row in batch]
        if not any(extra):
            return controls
        masks = [soft_mask(row.regions, row.source.image.shape[:2], 1) for row in batch]
        emphasis = torch.cat([1 + by * mask for by, mask in zip(extra, masks, strict=True)] * repeats)
        return [replace(control, emphasis=emphasis.to(weights.device)) for control in controls]

    def _shape(self, row: _Prepared, noise: Tensor, scheduler: Any) -> Shape | None:
        """The shape that a row protects by its latents, if any."""
        protection = row.protection
        if protection is None or protection.by not in ("blended", "relit") or not row.regions:
            return None
        mask = soft_mask(row.regions, row.source.image.shape[:2], self._weights.factor).to(noise)
        steps = max(1, round(protection.strength * len(scheduler.timesteps))) if protection.strength else 0
        until = steps_until_kept(scheduler, steps)
        return Shape(self._latents(row.source), mask, noise, until, relit=protection.by == "relit")
