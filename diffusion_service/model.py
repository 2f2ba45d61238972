"""What diffusion_service loads, and a request's way through it: decode, batch, render, encode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import torch

from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem, Source
from diffusion_service.geometry import to_source
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import load
from shared.images import Pixels, decode, encode
from shared.problems import InvalidInput
from shared.profiles import Diffusion
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import Rendering, RenderReply, RenderRequest
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher


class DiffusionModel:
    """The editors over one set of weights, behind one batcher whose thread owns them."""

    def __init__(self, profile: Diffusion, device: str, make_batcher: MakeBatcher) -> None:
        """Load the profile's weights onto `device` (torch's name) and render once, so that nobody waits for that."""
        if "canny" not in profile.controlnets:
            raise ValueError("the profile names no ControlNet for canny edges; add [diffusion.controlnets.canny]")
        networks = load(profile.base, profile.controlnets["canny"], device=device, scheduler=profile.scheduler)
        segmenter = None
        if profile.segmenter is not None:
            segmenter = Segmenter(profile.segmenter, profile.keep_labels, device=device)
        self.device = device
        self.weights = _weights(profile)
        self._editor = ControlNetEditor(networks, segmenter)
        self._warm_up(networks.resolution)
        self._batcher = make_batcher(self._editor.render, profile.max_batch)

    async def render(self, request: RenderRequest, deadline: float) -> RenderReply:
        """Render all of a request; raises InvalidInput for a source or prompt that cannot be rendered."""
        source = await asyncio.to_thread(lambda: self._editor.source(decode(request.source.png)))
        if refused := {one.region for one in request.renderings} - set(self._editor.regions):
            raise InvalidInput(f"no segmenter in this profile, so no control region {sorted(refused)}; use 'full'")
        width, height = source.geometry.padded
        rendered = await self._batcher.submit_all(
            [RenderItem(source, rendering, request.negative_prompt) for rendering in request.renderings],
            key=BatchKey(width, height, request.steps, request.guidance, request.control_scale),
            deadline=deadline,
        )
        return await asyncio.to_thread(_reply, source, request.renderings, rendered)

    def _warm_up(self, side: int) -> None:
        source = self._editor.source(np.zeros((side, side, 3), np.uint8))
        item = RenderItem(source, Rendering(prompt="warm-up", seed=0), "")
        self._editor.render(BatchKey(side, side, steps=1, guidance=2.0, control_scale=1.0), [item])


def choose_device(name: str) -> str:
    """`auto` is the first GPU where there is one; other names are torch's own (`cpu`, `cuda:1`, ...)."""
    if name != "auto":
        return name
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _weights(profile: Diffusion) -> list[WeightsInfo]:
    infos = [profile.base.info("base"), profile.controlnets["canny"].info("controlnet-canny")]
    return infos if profile.segmenter is None else [*infos, profile.segmenter.info("segmenter")]


def _reply(source: Source, renderings: Sequence[Rendering], rendered: Sequence[Rendered]) -> RenderReply:
    def payload(pixels: Pixels) -> ImagePayload:
        return ImagePayload(png=encode(to_source(pixels, source.geometry)))

    by_region = {rendering.region: one.control for rendering, one in zip(renderings, rendered, strict=True)}
    keep = rendered[0].keep
    return RenderReply(
        images=[payload(one.image) for one in rendered],
        controls={region: payload(control) for region, control in by_region.items()},
        keep_mask=None if keep is None else payload(keep),
        evaluations=rendered[0].evaluations,
        prompts=[one.prompt for one in rendered],
    )
