"""What diffusion_service loads, and a request's way through it: decode, batch, compute, encode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from diffusion_service.alignment import positions
from diffusion_service.attention import install
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem, Source
from diffusion_service.editors.corruptions import corrupted
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter
from diffusion_service.editors.prompt_to_prompt import Edited, EditItem, EditKey, PromptToPromptEditor, attention_to
from diffusion_service.geometry import to_source
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import StableDiffusion, load
from shared.images import Pixels, decode, encode
from shared.problems import InvalidInput, OutOfMemory
from shared.profiles import Diffusion
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import (
    CorruptReply,
    CorruptRequest,
    EditControl,
    EditEvaluations,
    EditReply,
    EditRequest,
    PromptEdit,
    Rendering,
    RenderReply,
    RenderRequest,
)
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class DiffusionModel:
    """The editors over one set of weights, behind one batcher whose thread owns them all."""

    def __init__(
        self, profile: Diffusion, device: str, make_batcher: MakeBatcher, *, deterministic: bool = False
    ) -> None:
        """Load the profile's weights onto `device` (torch's name) and use each editor once, so that nobody waits."""
        if "canny" not in profile.controlnets:
            raise ValueError("the profile names no ControlNet for canny edges; add [diffusion.controlnets.canny]")
        networks = load(profile.base, profile.controlnets["canny"], device=device, scheduler=profile.scheduler)
        install(networks.unet)
        segmenter = None
        if profile.segmenter is not None:
            segmenter = Segmenter(profile.segmenter, profile.keep_labels, device=device)
        self.device = device
        self.weights = _weights(profile)
        self._networks: StableDiffusion = networks
        self._controlnet = ControlNetEditor(networks, segmenter)
        self._inverter = Inverter(networks, partial(_edit_control, self._controlnet), self._controlnet.keep)
        self._prompt_to_prompt = PromptToPromptEditor(networks, fixed_shapes=deterministic)
        self._warm_up(networks.resolution)
        self._batcher = make_batcher(_compute, profile.max_batch)

    async def render(self, request: RenderRequest, deadline: float) -> RenderReply:
        """Render all of a request; raises InvalidInput for a source or prompt that cannot be rendered."""
        source = await asyncio.to_thread(lambda: self._controlnet.source(decode(request.source.png)))
        self._check_regions({one.region for one in request.renderings})
        width, height = source.geometry.padded
        rendered = await self._run(
            self._controlnet.render,
            BatchKey(width, height, request.steps, request.guidance, request.control_scale),
            [RenderItem(source, rendering, request.negative_prompt) for rendering in request.renderings],
            deadline,
        )
        return await asyncio.to_thread(_reply, source, request.renderings, rendered)

    async def edit(self, request: EditRequest, deadline: float) -> EditReply:
        """Invert and edit; raises InvalidInput for what cannot be inverted, aligned or found in the prompts."""
        self._check_regions({request.control} - {"none", "empty"})
        source = await asyncio.to_thread(lambda: self._controlnet.source(decode(request.source.png)))
        caption = self._networks.prompts.fitted(request.caption)
        words = self._networks.prompts.words
        tokens = [
            positions(words(caption), words(phrase), f"the caption has no phrase “{phrase}” to show the attention to")
            for phrase in request.attention_to
        ]
        (inversion,) = await self._run(
            self._inverter.invert, _inversion_key(request, source), [InversionItem(source, caption)], deadline
        )
        items = [EditItem(inversion, edit, fraction) for edit in request.edits for fraction in request.self_fractions]
        edited = await self._run(self._prompt_to_prompt.edit, _edit_key(request, source), items, deadline)
        return await asyncio.to_thread(_edit_reply, request, inversion, edited, tokens)

    async def corrupt(self, request: CorruptRequest) -> CorruptReply:
        """Corrupt on the CPU, beside the networks' thread; raises InvalidInput for a source that is too small."""
        source = await asyncio.to_thread(decode, request.source.png)
        images = []
        for corruption in request.corruptions:  # one at a time, so that whoever leaves stops it
            pixels = await asyncio.to_thread(corrupted, source, corruption)
            images.append(ImagePayload(png=await asyncio.to_thread(encode, pixels)))
        return CorruptReply(images=images)

    async def _run(
        self, work: Callable[[Key, Sequence[Item]], Sequence[Result | InvalidInput]], key: Key, items: Sequence[Item],
        deadline: float,
    ) -> list[Result]:  # fmt: skip
        """Items through the one batcher; those of equal work and key are computed together."""
        results: list[Result] = await self._batcher.submit_all(items, key=(work, key), deadline=deadline)
        return results

    def _check_regions(self, asked: set[Any]) -> None:
        if refused := asked - set(self._controlnet.regions):
            raise InvalidInput(f"no segmenter in this profile, so no control region {sorted(refused)}; use 'full'")

    def _warm_up(self, side: int) -> None:
        source = self._controlnet.source(np.zeros((side, side, 3), np.uint8))
        item = RenderItem(source, Rendering(prompt="warm-up", seed=0), "")
        self._controlnet.render(BatchKey(side, side, steps=1, guidance=2.0, control_scale=1.0), [item])
        with suppress(InvalidInput):  # weights that cannot be inverted still render; edits are refused in words
            key = InversionKey(side, side, 1, 1.0, None, "none", 1.0)
            (inversion,) = self._inverter.invert(key, [InversionItem(source, "warm-up")])
            assert isinstance(inversion, Inversion)
            edit = EditItem(inversion, PromptEdit(prompt="warm-up"), 0.5)
            self._prompt_to_prompt.edit(EditKey(side, side, 1, 2.0, None), [edit])


def _compute(work: tuple[Callable[[Any, Sequence[Any]], Sequence[Any]], Hashable], items: Sequence[Any]) -> Any:
    editor, key = work
    try:
        return editor(key, items)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemory(f"the device has too little memory for {len(items)} images at once") from error


def choose_device(name: str) -> str:
    """`auto` is the first GPU where there is one; other names are torch's own (`cpu`, `cuda:1`, ...)."""
    if name != "auto":
        return name
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _weights(profile: Diffusion) -> list[WeightsInfo]:
    infos = [profile.base.info("base"), profile.controlnets["canny"].info("controlnet-canny")]
    return infos if profile.segmenter is None else [*infos, profile.segmenter.info("segmenter")]


def _inversion_key(request: EditRequest, source: Source) -> InversionKey:
    width, height = source.geometry.padded
    # The way up knows no guidance, so `direct` can serve any.
    guidance, null_text = (1.0, None) if request.inversion == "direct" else (request.guidance, request.null_text)
    return InversionKey(width, height, request.steps, guidance, null_text, request.control, request.control_scale)


def _edit_key(request: EditRequest, source: Source) -> EditKey:
    width, height = source.geometry.padded
    scale = None if request.control == "none" else request.control_scale
    return EditKey(width, height, request.steps, request.guidance, scale)


def _edit_control(editor: ControlNetEditor, source: Source, control: EditControl) -> Pixels | None:
    """The control image of an edit, or None where the UNet runs alone."""
    if control == "none":
        return None
    return np.zeros(source.image.shape[:2], np.uint8) if control == "empty" else editor.control(source, control)


def _payload(pixels: Pixels, source: Source) -> ImagePayload:
    return ImagePayload(png=encode(to_source(pixels, source.geometry)))


def _reply(source: Source, renderings: Sequence[Rendering], rendered: Sequence[Rendered]) -> RenderReply:
    by_region = {rendering.region: one.control for rendering, one in zip(renderings, rendered, strict=True)}
    keep = rendered[0].keep
    return RenderReply(
        images=[_payload(one.image, source) for one in rendered],
        controls={region: _payload(control, source) for region, control in by_region.items()},
        keep_mask=None if keep is None else _payload(keep, source),
        evaluations=rendered[0].evaluations,
        prompts=[one.prompt for one in rendered],
    )


def _edit_reply(
    request: EditRequest, inversion: Inversion, edited: Sequence[Edited], tokens: Sequence[Sequence[int]]
) -> EditReply:
    source, width = inversion.source, len(request.self_fractions)
    per_edit = [edited[start : start + width] for start in range(0, len(edited), width)]
    height, breadth = source.image.shape[:2]
    masks = [attention_to(inversion.maps, places, height, breadth).mul(255).byte().numpy() for places in tokens]
    return EditReply(
        reconstruction=_payload(inversion.reconstruction, source),
        images=[[_payload(one.image, source) for one in row] for row in per_edit],
        attention=[_payload(mask, source) for mask in masks],
        keep_mask=None if inversion.keep is None else _payload(inversion.keep, source),
        evaluations=EditEvaluations(
            inversion=inversion.evaluations, source=request.steps, edit=edited[0].evaluations if edited else 0
        ),
        caption=inversion.caption,
        prompts=[row[0].prompt for row in per_edit],
    )
