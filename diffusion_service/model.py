"""The networks that diffusion_service loads, and how it processes a request: decode, batch, compute, encode.

Requests for compositions: find the objects, compose each image, and encode the reply.

Colours of segmentation maps that ControlNets were trained with: index of a label → red, green, blue.

`ade20k` holds the colours of the 150 classes of ADE20K (arXiv 1608.05442) in their usual order, which the public
segmenters for it and `lllyasviel/control_v11p_sd15_seg` use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.alignment import positions
from diffusion_service.attention import install
from diffusion_service.background_remover import BackgroundRemover
from diffusion_service.control_images import ControlImages, DepthEstimator, Source
from diffusion_service.editors.compose import MOST_SHARE, compose, covering, object_of, refusal, without
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, RenderItem
from diffusion_service.editors.corruptions import corrupt
from diffusion_service.editors.inversion import Inversion, InversionItem, InversionKey, Inverter
from diffusion_service.editors.prompt_to_prompt import EditItem, EditKey, PromptToPromptEditor
from diffusion_service.few_steps import FewStepDiffusion, few_steps_of, load_networks
from diffusion_service.geometry import fit, to_source
from diffusion_service.hed import HedDetector
from diffusion_service.instruct import CACHED_SOURCES, Instructor
from diffusion_service.once import Once
from diffusion_service.replies import edit_reply, render_reply
from diffusion_service.segmentation import NOT_FINITE as SEGMENTER_NOT_FINITE
from diffusion_service.segmentation import Segmenter
from diffusion_service.stable_diffusion import NOT_FINITE, StableDiffusion
from shared.media.images import Pixels, decode, digest, encode
from shared.media.regions import Mask
from shared.problems import InvalidInput, NotFinite, OutOfMemory, Problem
from shared.profiles.diffusion import Diffusion
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import (
    ComposeReply,
    ComposeRequest,
    Composition,
    ControlKind,
    ControlStrength,
    CorruptReply,
    CorruptRequest,
    EditControl,
    EditReply,
    EditRequest,
    InstructReply,
    InstructRequest,
    PromptEdit,
    Rendering,
    RenderReply,
    RenderRequest,
    chosen_controls,
)
from shared.schemas.service import WeightsInfo
from shared.service.devices import info_in_tf32
from shared.service.load_progress import preparing
from shared.service.model_service import MakeBatcher

# Six hexadecimal digits per class.
_ADE20K = """
787878 b47878 06e6e6 503232 04c803 787850 8c8c8c cc05ff e6e6e6 04fa07 e005ff ebff07 96053d 787846 08ff33
ff0652 8fff8c ccff04 ff3307 cc4603 0066c8 3de6fa ff0633 0b66ff ff0747 ff09e0 0907e6 dcdcdc ff095c 7009ff
08ffd6 07ffe0 ffb806 0aff47 ff290a 07ffff e0ff08 6608ff ff3d06 ffc207 ff7a08 00ff14 ff0829 ff0599 0633ff
eb0cff a09614 00a3ff 8c8c8c fa0a0f 14ff00 1fff00 ff1f00 ffe000 99ff00 0000ff ff4700 00ebff 00adff 1f00ff
0bc8c8 ff5200 00fff5 003dff 00ff70 00ff85 ff0000 ffa300 ff6600 c2ff00 008fff 33ff00 0052ff 00ff29 00ffad
0a00ff adff00 00ff99 ff5c00 ff00ff ff00f5 ff0066 ffad00 ff0014 ffb8b8 001fff 00ff3d 0047ff ff00cc 00ffc2
00ff52 000aff 0070ff 3300ff 00c2ff 007aff 00ffa3 ff9900 00ff0a ff7000 8fff00 5200ff a3ff00 ffeb00 08b8aa
8500ff 00ff5c b800ff ff001f 00b8ff 00d6ff ff0070 5cff00 00e0ff 70e0ff 46b8a0 a300ff 9900ff 47ff00 ff00a3
ffcc00 ff008f 00ffeb 85ff00 ff00eb f500ff ff007a fff500 0abed4 d6ff00 00ccff 1400ff ffff00 0099ff 0029ff
00ffcc 2900ff 29ff00 ad00ff 00f5ff 4700ff 7a00ff 00ffb8 005cff b8ff00 0085ff ffd600 19c2c2 66ff00 5c00ff
"""
FoundObject = Pixels | str  # its mask, height × width; or why there is none
Masks = dict[bytes, FoundObject]  # by an image's PNG
PLAIN = 127  # grey
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
        remover = profile.background_remover
        self._remover = BackgroundRemover(remover, device=device) if remover else None
        self._inverter = Inverter(networks, partial(_edit_control, images), images.keep, fixed_shapes=deterministic)
        self._inverting: dict[tuple[InversionKey, InversionItem], asyncio.Future[Inversion | Problem | None]] = {}
        self._sources = Once[bytes, Source](CACHED_SOURCES)
        self._prompt_to_prompt = PromptToPromptEditor(networks, fixed_shapes=deterministic)
        side = _warm_up_side(networks)
        self._warm_up(side, few_step)
        few = few_step.networks if few_step else None
        self._instructor = Instructor(profile.instruct, networks, few, device, self._run) if profile.instruct else None
        if self._instructor is not None:
            with preparing("a first instructed edit"):
                self._instructor.warm_up(side)
        self._batcher = make_batcher(_compute, profile.max_batch, batches_at_once, kind=_duration_kind)

    async def render(self, request: RenderRequest, deadline: float) -> RenderReply:
        """Render all images of a request. Raises InvalidInput for a source or prompt that cannot be rendered.

        Images that are not finite are null in the reply; raises NotFinite if all are.
        """
        source = await asyncio.to_thread(self._source, request.source)
        self._check_regions({rendering.region for rendering in request.renderings})
        controls = chosen_controls(request.control, request.control_scale, request.controls)
        self._check_kinds({control.kind for control in controls})
        width, height = source.geometry.padded
        key = BatchKey(width, height, request.steps, request.guidance, controls)
        items = [
            RenderItem(source, rendering, request.negative_prompt, request.protection)
            for rendering in request.renderings
        ]
        await asyncio.to_thread(self._controlnet.prepare, key, items)
        rendered = await self._run(self._controlnet.render, key, items, deadline)
        return await asyncio.to_thread(render_reply, source, request, controls, rendered)

    async def edit(self, request: EditRequest, deadline: float) -> EditReply:
        """Invert and edit. Raises InvalidInput if a phrase of `attention_to` is not in the caption.

        Edited images that are not finite are null in the reply, as are those of refused edits; raises NotFinite if the
        reconstruction is not finite.
        """
        self._check_regions({request.control} - {"none", "empty"})
        source = await asyncio.to_thread(self._source, request.source)
        await asyncio.to_thread(self._controlnet.images.prepare, source, ["canny"], [request.control])
        caption = self._networks.prompts.fit(request.caption)
        words = self._networks.prompts.words
        tokens = [
            positions(words(caption), words(phrase), f"the caption has no phrase “{phrase}” to show the attention to")
            for phrase in request.attention_to
        ]
        inversion = await self._invert(_inversion_key(request, source), InversionItem(source, caption), deadline)
        edits = [_with_readable_caption(edit, request.caption, caption) for edit in request.edits]
        items = [EditItem(inversion, edit, fraction) for edit in edits for fraction in request.self_fractions]
        results = await self._run(self._prompt_to_prompt.edit, _edit_key(request, source), items, deadline)
        return await asyncio.to_thread(edit_reply, request, inversion, results, tokens)

    def _source(self, image: ImagePayload) -> Source:
        """A source image at the model's size, decoded once for the requests of its edits."""
        return self._sources.get(sha256(image.png).digest(), lambda: self._controlnet.source(decode(image.png)))

    async def _invert(self, key: InversionKey, item: InversionItem, deadline: float) -> Inversion:
        """An inversion, computed once for all requests that wait for it; the inverter keeps it for later ones."""
        while (waiting := self._inverting.get((key, item))) is not None:
            await asyncio.wait([waiting])
            shared = waiting.result()
            if isinstance(shared, Problem):
                raise shared
            if shared is not None:
                return shared
        future = self._inverting[key, item] = asyncio.get_running_loop().create_future()
        outcome: Inversion | Problem | None = None  # if this request ends early, one that waits computes the inversion
        try:
            (inversion,) = await self._run(self._inverter.invert, key, [item], deadline)
            outcome = NotFinite(NOT_FINITE) if inversion is None else inversion
        except InvalidInput as problem:
            outcome = problem
        finally:
            del self._inverting[key, item]
            future.set_result(outcome)
        if isinstance(outcome, Problem):
            raise outcome
        return outcome

    async def corrupt(self, request: CorruptRequest) -> CorruptReply:
        """Corrupt on the CPU, outside of the networks' thread; raises InvalidInput for a source that is too small."""
        source = await asyncio.to_thread(decode, request.source.png)
        images = []
        for corruption in request.corruptions:  # one call each, so that a cancelled request stops
            pixels = await asyncio.to_thread(corrupt, source, corruption)
            images.append(ImagePayload(png=await asyncio.to_thread(encode, pixels)))
        return CorruptReply(images=images)

    async def compose(self, request: ComposeRequest, deadline: float) -> ComposeReply:
        """Compose on the CPU, with objects that the profile's models find in images without a mask.

        Raises InvalidInput without such a model, and for a mask of another size than its image's.
        """
        images = to_segment(request)
        pixels = await asyncio.to_thread(lambda: [decode(png) for png in images])
        objects = await self._objects(pixels, deadline) if images else []
        masks = dict(zip(images, objects, strict=True))
        plain = request.mask is None and self._remover is not None
        return await asyncio.to_thread(compose_reply, request, masks, plain)

    async def instruct(self, request: InstructRequest, deadline: float) -> InstructReply:
        """Edit by instructions. Raises InvalidInput if the profile has no editor for them, or it refuses the region."""
        if self._instructor is None:
            raise InvalidInput("no editor of this profile carries out instructions; add [diffusion.instruct]")
        return await self._instructor.reply(request, self._object_in, deadline)

    async def _object_in(self, pixels: Pixels, deadline: float) -> Pixels:
        """The mask of what must stay in an image. Raises InvalidInput if no model of the profile finds it."""
        (mask,) = await self._objects([pixels], deadline)
        if isinstance(mask, str):
            raise InvalidInput(mask)
        return mask

    async def _objects(self, images: Sequence[Pixels], deadline: float) -> list[FoundObject]:
        """The objects in images: of the background remover, else what the segmenter must keep.

        Raises InvalidInput if the profile has neither, and NotFinite.
        """
        masks: Sequence[FoundObject | None]
        if self._remover is not None:
            masks = await self._run(self._remover.find, None, images, deadline)
        elif self._controlnet.images.segmenter is not None:
            sources = await asyncio.to_thread(lambda: [self._controlnet.source(pixels) for pixels in images])
            masks = await self._run(self._find_objects, None, sources, deadline)
        else:
            raise InvalidInput(
                "no background remover and no segmenter in this profile finds the objects; send masks of them, or add "
                "[diffusion.background_remover]"
            )
        finite = [mask for mask in masks if mask is not None]
        if len(finite) < len(masks):
            raise NotFinite(SEGMENTER_NOT_FINITE)
        return finite

    def _find_objects(self, _: None, sources: Sequence[Source]) -> list[Pixels | NotFinite]:
        """The segmenter's masks of what must stay in images, at their size."""
        masks: list[Pixels | NotFinite] = []
        for source in sources:
            try:
                keep = self._controlnet.images.keep(source)
            except NotFinite as problem:
                masks.append(problem)
                continue
            assert keep is not None  # `_objects` refuses requests without a segmenter
            masks.append(to_source(keep, source.geometry))
        return masks

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
        compiling = "" if self._networks.acceleration.compile == "off" else ", for which networks are compiled"
        with preparing(f"a first rendering{compiling}"):
            self._controlnet.render(BatchKey(side, side, steps=1, guidance=2.0, controls=controls), [item])
        if few_step is not None:
            with preparing(f"a first rendering in few steps{compiling}"):
                self._controlnet.render(BatchKey(side, side, few_step.steps, few_step.guidance, controls), [item])
        # Weights that cannot be inverted still render; edits are refused with a reason.
        with preparing("a first inversion"), suppress(InvalidInput):
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


def _duration_kind(work: tuple[Callable[[Any, Sequence[Any]], Sequence[Any]], Hashable]) -> Hashable:
    """What decides how long an item takes: the editor, size, steps and what else items of a batch share."""
    editor, key = work
    return editor, getattr(key, "duration_kind", key)


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
    estimators = {"depth": profile.depth, "hed": profile.hed}
    return [
        *profile.infos(),
        *controlnets,
        *(profile.few_step.infos() if profile.few_step else []),
        *([profile.vae.info("autoencoder")] if profile.vae else []),
        *segmenter,
        *([profile.background_remover.info("background remover")] if profile.background_remover else []),
        *(profile.instruct.infos() if profile.instruct else []),
        *(weights.info(role) for role, weights in estimators.items() if weights),
    ]


def _control_images(profile: Diffusion, device: str) -> ControlImages:
    segmenter = Segmenter(profile.segmenter, profile.keep_labels, device=device) if profile.segmenter else None
    colours = palette(profile.palette, segmenter.labels) if segmenter and profile.palette is not None else None
    depth = DepthEstimator(profile.depth, device=device) if profile.depth else None
    hed = HedDetector(profile.hed, device=device) if profile.hed else None
    return ControlImages(segmenter, colours, depth, hed)


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


def to_segment(request: ComposeRequest) -> list[bytes]:
    """The images (PNG), each once, whose objects a model must find."""
    images = [request.source.png] if request.mask is None else []
    for composition in request.compositions:
        if composition.background and composition.clear and composition.background_mask is None:
            images.append(composition.background.png)
    return list(dict.fromkeys(images))


def compose_reply(request: ComposeRequest, masks: Masks, plain: bool = False) -> ComposeReply:
    """The images of a request; `masks` has those of `to_segment`. Raises InvalidInput for a mask of another size.

    `plain`: grey stands for the source's own background, because the mask may miss a part of the object. That part
    would stay there, in the null arm but on no other background, and the model's loss would be the mask's.
    """
    source = decode(request.source.png)
    object_mask = _mask(request.source, request.mask, source, masks)
    mask = np.zeros(source.shape[:2], np.bool_) if isinstance(object_mask, str) else object_of(object_mask)
    reason = object_mask if isinstance(object_mask, str) else refusal(mask)
    outcomes = [reason or _compose(source, mask, composition, masks, plain) for composition in request.compositions]
    return ComposeReply(
        images=[None if isinstance(image, str) else ImagePayload(png=encode(image)) for image in outcomes],
        refusals=[image if isinstance(image, str) else "" for image in outcomes],
        mask=ImagePayload(png=encode(np.where(mask, np.uint8(255), np.uint8(0)))),
    )


def _compose(source: Pixels, mask: Mask, composition: Composition, masks: Masks, plain: bool) -> Pixels | str:
    if composition.background is None:
        own = np.full_like(source, PLAIN) if plain else without(source, mask)
        return compose(source, mask, own, composition)
    background = _background(composition, composition.background, masks, source.shape[:2])
    return background if isinstance(background, str) else compose(source, mask, background, composition)


def _background(composition: Composition, image: ImagePayload, masks: Masks, size: tuple[int, ...]) -> Pixels | str:
    pixels = decode(image.png)
    if composition.clear:
        mask = _mask(image, composition.background_mask, pixels, masks)
        if isinstance(mask, str):
            return f"its objects cannot be removed from the background: {mask}"
        objects = object_of(mask)
        if objects.mean() > MOST_SHARE:
            return "the objects of the background fill it, which leaves no background"
        pixels = without(pixels, objects)
    return covering(pixels, size)


def _mask(image: ImagePayload, mask: ImagePayload | None, pixels: Pixels, masks: Masks) -> Mask | str:
    values = masks[image.png] if mask is None else decode(mask.png, "L")
    if isinstance(values, str):
        return values
    if values.shape != pixels.shape[:2]:
        raise InvalidInput("a mask must have the size of its image; send both from one file")
    return np.asarray(values > 0)


def palette(name_or_colours: Literal["ade20k"] | Mapping[str, Sequence[int]], labels: Sequence[str]) -> Pixels:
    """Colours (labels × 3) of a segmenter's labels in their order; a label missing from a mapping is black.

    Raises ValueError for a label that the segmenter lacks, or if the number of labels does not match the palette.
    """
    if name_or_colours == "ade20k":
        colours = np.array([list(bytes.fromhex(code)) for code in _ADE20K.split()], np.uint8)
        if len(colours) != len(labels):
            raise ValueError(f"palette ade20k is for {len(colours)} labels, and the segmenter has {len(labels)}")
        return colours
    if unknown := sorted(set(name_or_colours) - set(labels)):
        raise ValueError(f"the palette colours labels that the segmenter lacks: {unknown}; it has {sorted(labels)}")
    return np.array([name_or_colours.get(label, (0, 0, 0)) for label in labels], np.uint8)
