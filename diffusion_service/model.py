"""The networks that diffusion_service loads, and how it processes a request: decode, batch, compute, encode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import cv2
import numpy as np
import torch

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.alignment import positions
from diffusion_service.attention import install
from diffusion_service.control_images import ControlImages, Source
from diffusion_service.depth import DepthEstimator
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.editors.corruptions import corrupted
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter
from diffusion_service.editors.prompt_to_prompt import (
    Edited,
    EditItem,
    EditKey,
    EditResult,
    PromptToPromptEditor,
    Refusal,
    attention_to,
)
from diffusion_service.few_steps import FewStepDiffusion, few_steps_of, load_networks
from diffusion_service.geometry import fit, to_source
from diffusion_service.palettes import palette
from diffusion_service.protection import union
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import NOT_FINITE, StableDiffusion
from shared.chunks import chunks
from shared.devices import info_in_tf32
from shared.images import Pixels, decode, digest, encode
from shared.problems import InvalidInput, NotFinite, OutOfMemory
from shared.profiles import Diffusion
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import (
    ControlKind,
    ControlRegion,
    Controls,
    ControlStrength,
    CorruptReply,
    CorruptRequest,
    EditControl,
    EditEvaluations,
    EditReply,
    EditRequest,
    PromptEdit,
    ProtectedRegion,
    ProtectionReply,
    Rendering,
    RenderReply,
    RenderRequest,
    chosen_controls,
)
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")


class DiffusionModel:
    """The editors over one set of weights, behind one batcher; between batches they keep only caches."""

    def __init__(
        self,
        profile: Diffusion,
        device: str,
        make_batcher: MakeBatcher,
        *,
        deterministic: bool = False,
        batches_at_once: int = 1,
        acceleration: Acceleration = OFF,
    ) -> None:
        """Load the profile's weights onto `device` (torch's name) and warm up each editor."""
        if "canny" not in profile.controlnets:
            raise ValueError("the profile names no ControlNet for canny edges; add [diffusion.controlnets.canny]")
        networks = load_networks(profile, device, acceleration)
        install(networks.unet)
        self.device = device
        self.weights = _weights(profile, device) + acceleration.infos()
        self._networks: StableDiffusion = networks
        few_step = few_steps_of(profile, networks)
        self._controlnet = ControlNetEditor(networks, _control_images(profile, device), few_step)
        images = self._controlnet.images
        self._inverter = Inverter(networks, partial(_edit_control, images), images.keep, fixed_shapes=deterministic)
        self._prompt_to_prompt = PromptToPromptEditor(networks, fixed_shapes=deterministic)
        self._warm_up(_warm_up_side(networks), few_step)
        self._batcher = make_batcher(_compute, profile.max_batch, batches_at_once)

    async def render(self, request: RenderRequest, deadline: float) -> RenderReply:
        """Render all images of a request. Raises InvalidInput for a source or prompt that cannot be rendered.

        Images that are not finite are null in the reply; raises NotFinite if all are.
        """
        source = await asyncio.to_thread(lambda: self._controlnet.source(decode(request.source.png)))
        self._check_regions({rendering.region for rendering in request.renderings})
        controls = chosen_controls(request.control, request.control_scale, request.controls)
        self._check_kinds({control.kind for control in controls})
        width, height = source.geometry.padded
        rendered = await self._run(
            self._controlnet.render,
            BatchKey(width, height, request.steps, request.guidance, controls),
            [
                RenderItem(source, rendering, request.negative_prompt, request.protection)
                for rendering in request.renderings
            ],
            deadline,
        )
        return await asyncio.to_thread(_reply, source, request, controls, rendered)

    async def edit(self, request: EditRequest, deadline: float) -> EditReply:
        """Invert and edit. Raises InvalidInput if a phrase of `attention_to` is not in the caption.

        Edited images that are not finite are null in the reply, as are those of refused edits; raises NotFinite if the
        reconstruction is not finite.
        """
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
        if inversion is None:
            raise NotFinite(NOT_FINITE)
        edits = [_with_readable_caption(edit, request.caption, caption) for edit in request.edits]
        items = [EditItem(inversion, edit, fraction) for edit in edits for fraction in request.self_fractions]
        results = await self._run(self._prompt_to_prompt.edit, _edit_key(request, source), items, deadline)
        return await asyncio.to_thread(_edit_reply, request, inversion, results, tokens)

    async def corrupt(self, request: CorruptRequest) -> CorruptReply:
        """Corrupt on the CPU, outside of the networks' thread; raises InvalidInput for a source that is too small."""
        source = await asyncio.to_thread(decode, request.source.png)
        images = []
        for corruption in request.corruptions:  # one call each, so that a cancelled request stops
            pixels = await asyncio.to_thread(corrupted, source, corruption)
            images.append(ImagePayload(png=await asyncio.to_thread(encode, pixels)))
        return CorruptReply(images=images)

    async def _run(
        self, work: Callable[[Key, Sequence[Item]], Sequence[Result | InvalidInput | NotFinite]], key: Key,
        items: Sequence[Item], deadline: float,
    ) -> list[Result | None]:  # fmt: skip
        """Submit items to the batcher, which batches equal work and key. Results that are not finite are None."""
        results: list[Result | None] = await self._batcher.submit_all(items, key=(work, key), deadline=deadline)
        return results

    def _check_regions(self, requested: set[Any]) -> None:
        if refused := requested - set(self._controlnet.images.regions):
            raise InvalidInput(f"no segmenter in this profile, so no control region {sorted(refused)}; use 'full'")

    def _check_kinds(self, requested: set[ControlKind]) -> None:
        available = self._networks.controlnets
        if refused := sorted(requested - set(available)):
            raise InvalidInput(
                f"this profile has no ControlNet for {', '.join(refused)}; "
                f"use one of its kinds of control: {', '.join(available)}"
            )

    def _warm_up(self, side: int, few_step: FewStepDiffusion | None) -> None:
        pixels = np.zeros((side, side, 3), np.uint8)
        source = Source(pixels, fit(side, side, side, self._networks.multiple), digest(pixels))
        item = RenderItem(source, Rendering(prompt="warm-up", seed=0), "")
        controls = tuple(ControlStrength(kind=kind) for kind in self._networks.controlnets)
        self._controlnet.render(BatchKey(side, side, steps=1, guidance=2.0, controls=controls), [item])
        if few_step is not None:
            self._controlnet.render(BatchKey(side, side, few_step.steps, few_step.guidance, controls), [item])
        with suppress(InvalidInput):  # weights that cannot be inverted still render; edits are refused with a reason
            key = InversionKey(side, side, 1, 1.0, None, "none", 1.0)
            (inversion,) = self._inverter.invert(key, [InversionItem(source, "warm-up")])
            assert isinstance(inversion, Inversion)
            edit = EditItem(inversion, PromptEdit(prompt="warm-up"), 0.5)
            self._prompt_to_prompt.edit(EditKey(side, side, 1, 2.0, None), [edit])


def _warm_up_side(networks: StableDiffusion) -> int:
    """The side of the one image of a warm-up, in pixels.

    On a GPU, kernels and memory depend on the size, and `torch.compile` compiles for one size, so both warm up at the
    native size. A CPU uses a small size, because XL's native size would take it a quarter of an hour.
    """
    if networks.device.type != "cpu" or networks.acceleration.compile != "off":
        return networks.resolution
    return min(networks.resolution, 2 * networks.multiple)


def _compute(work: tuple[Callable[[Any, Sequence[Any]], Sequence[Any]], Hashable], items: Sequence[Any]) -> Any:
    editor, key = work
    try:
        return [None if isinstance(result, NotFinite) else result for result in editor(key, items)]
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemory(f"the device has too little memory for {len(items)} images at once") from error


def _weights(profile: Diffusion, device: str) -> list[WeightsInfo]:
    controlnets = [weights.info(f"controlnet-{kind}") for kind, weights in profile.controlnets.items()]
    segmenter = [info_in_tf32(profile.segmenter.info("segmenter"), device)] if profile.segmenter else []
    depth = [profile.depth.info("depth")] if profile.depth else []
    return [
        *profile.infos(),
        *controlnets,
        *(profile.few_step.infos() if profile.few_step else []),
        *([profile.vae.info("autoencoder")] if profile.vae else []),
        *segmenter,
        *depth,
    ]


def _control_images(profile: Diffusion, device: str) -> ControlImages:
    segmenter = Segmenter(profile.segmenter, profile.keep_labels, device=device) if profile.segmenter else None
    colours = palette(profile.palette, segmenter.labels) if segmenter and profile.palette is not None else None
    depth = DepthEstimator(profile.depth, device=device) if profile.depth else None
    return ControlImages(segmenter, colours, depth)


def _inversion_key(request: EditRequest, source: Source) -> InversionKey:
    width, height = source.geometry.padded
    # The inversion uses no guidance, so `direct` fits any.
    guidance, null_text = (1.0, None) if request.inversion == "direct" else (request.guidance, request.null_text)
    return InversionKey(width, height, request.steps, guidance, null_text, request.control, request.control_scale)


def _edit_key(request: EditRequest, source: Source) -> EditKey:
    width, height = source.geometry.padded
    scale = None if request.control == "none" else request.control_scale
    return EditKey(width, height, request.steps, request.guidance, scale)


def _with_readable_caption(edit: PromptEdit, caption: str, readable: str) -> PromptEdit:
    """A null arm's prompt is the caption as far as the text encoder reads it, not an edit beyond that."""
    return edit.model_copy(update={"prompt": readable}) if edit.prompt == caption else edit


def _edit_control(images: ControlImages, source: Source, control: EditControl) -> Pixels | None:
    """The control image of an edit, or None if the UNet runs alone."""
    if control == "none":
        return None
    return np.zeros(source.image.shape[:2], np.uint8) if control == "empty" else images.image(source, "canny", control)


def _payload(pixels: Pixels, source: Source) -> ImagePayload:
    return ImagePayload(png=encode(to_source(pixels, source.geometry)))


def _reply(
    source: Source, request: RenderRequest, controls: Controls, rendered: Sequence[Rendered | None]
) -> RenderReply:
    finite = [result for result in rendered if result is not None]
    if not finite:
        raise NotFinite(NOT_FINITE)
    by_kind: dict[ControlKind, dict[ControlRegion, ImagePayload]] = {
        strength.kind: {
            rendering.region: _payload(result.controls[index], source)
            for rendering, result in zip(request.renderings, rendered, strict=True)
            if result is not None
        }
        for index, strength in enumerate(controls)
    }
    first, keep = controls[0].kind, finite[0].keep
    return RenderReply(
        images=[None if result is None else _payload(result.image, source) for result in rendered],
        controls=by_kind.pop(first),
        keep_mask=None if keep is None else _payload(keep, source),
        evaluations=finite[0].evaluations,
        prompts=["" if result is None else result.prompt for result in rendered],
        further_controls=by_kind,
        protection=None if request.protection is None else _protection(source, rendered),
    )


def _protection(source: Source, rendered: Sequence[Rendered | None]) -> ProtectionReply:
    regions = next(result.regions for result in rendered if result is not None)
    return ProtectionReply(
        mask=_payload(union(regions, source.image.shape[:2]), source),
        regions=[_region(to_source(region.mask.view(np.uint8), source.geometry), region.label) for region in regions],
        outcomes=[[] if result is None else list(result.outcomes) for result in rendered],
    )


def _region(mask: Pixels, label: str) -> ProtectedRegion:
    """A region (height × width, not 0 inside) for the reply, in the source's pixels."""
    left, top, width, height = cv2.boundingRect(mask)
    return ProtectedRegion(
        label=label, share=float(mask.astype(bool).mean()), box=(left, top, left + width, top + height)
    )


def _edit_reply(
    request: EditRequest,
    inversion: Inversion,
    results: Sequence[EditResult | None],
    tokens: Sequence[Sequence[int]],
) -> EditReply:
    source, width = inversion.source, len(request.self_fractions)
    refusals = [row[0].reason if isinstance(row[0], Refusal) else None for row in chunks(results, width)]
    edited = [result if isinstance(result, Edited) else None for result in results]
    finite = [result for result in edited if result is not None]
    per_edit = list(chunks(edited, width))
    height, breadth = source.image.shape[:2]
    masks = [attention_to(inversion.maps, positions, height, breadth).mul(255).byte().numpy() for positions in tokens]
    return EditReply(
        reconstruction=_payload(inversion.reconstruction, source),
        images=[[None if result is None else _payload(result.image, source) for result in row] for row in per_edit],
        attention=[_payload(mask, source) for mask in masks],
        keep_mask=None if inversion.keep is None else _payload(inversion.keep, source),
        evaluations=EditEvaluations(
            inversion=inversion.evaluations,
            source=max((result.source_evaluations for result in finite), default=0),
            edit=finite[0].evaluations if finite else 0,
        ),
        caption=inversion.caption,
        prompts=[next((result.prompt for result in row if result is not None), "") for row in per_edit],
        refusals=refusals if any(refusals) else [],
    )
