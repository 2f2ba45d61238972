"""Requests for instructed edits: one class per engine of `[diffusion.instruct]`, and the reply.

instruct-pix2pix   edits of equal size, steps and guidance share batches, of any requests
one-step           edits of equal size share batches
pipeline           one edit at a time
server             all edits of a request at once; the server batches them
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
import torch

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.editors.instruct_pix2pix import (
    InstructItem,
    InstructPix2PixEditor,
    UNetEditor,
    evaluations_per_step,
    fitted,
    load_pix2pix,
    readable,
)
from diffusion_service.editors.one_step import load_one_step
from diffusion_service.geometry import to_source
from diffusion_service.once import Once
from diffusion_service.replies import of_source
from diffusion_service.stable_diffusion import NOT_FINITE, StableDiffusion
from shared.media.images import Pixels, decode, encode
from shared.problems import InvalidInput, NotFinite, UnusableReply
from shared.profiles.instruct import FormField, Instruct, InstructPipeline, InstructPix2Pix, InstructServer, OneStep
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import InstructReply, InstructRequest

CACHED_SOURCES = 16  # decoded; the edits of each come in requests of their own
TOO_LONG = "the instruction is too long for the text encoder; use fewer words"
NO_OBJECT = "there is no object to leave out; send a mask of it, or edit the region 'all'"
# Submits items with a key to the service's batcher, as `DiffusionModel` does; results that are not finite are None.
Run = Callable[[Callable[..., Any], Any, Sequence[Any], float], Awaitable[list[Any]]]
EditedImage = Pixels | str | None  # at the source's size; the reason for a refusal; None: not finite


@dataclass(frozen=True, slots=True)
class EditedImages:
    """The images of a request, in order, and the network evaluations of each (0: unknown)."""

    images: list[EditedImage]
    evaluations: int


class InstructEngine(Protocol):
    """Carries out the edits of a request on its decoded source; `keep` is not 0 where the source must stay."""

    def warm_up(self, side: int) -> None:
        """Edit an image of this side, so that the first request does not wait for what is prepared once."""
        ...

    async def edit(
        self, request: InstructRequest, source: Pixels, keep: Pixels | None, deadline: float
    ) -> EditedImages: ...


class UNetEngine:
    """The engines `instruct-pix2pix` and `one-step`."""

    def __init__(self, editor: UNetEditor, run: Run) -> None:
        self.editor, self._run = editor, run

    def warm_up(self, side: int) -> None:
        """Edit one image."""
        self.editor.warm_up(side)

    async def edit(
        self, request: InstructRequest, source: Pixels, keep: Pixels | None, deadline: float
    ) -> EditedImages:
        """Instructions that the text encoder cannot read are refused."""
        networks = self.editor.networks
        sized = await asyncio.to_thread(fitted, networks, source)
        key = self.editor.key(request, sized)
        accepted = [edit for edit in request.edits if readable(networks, edit.instruction)]
        items = [InstructItem(sized, edit.instruction, edit.seed) for edit in accepted]
        edited = iter(await self._run(self.editor.edit, key, items, deadline) if items else [])
        images: list[EditedImage] = []
        for edit in request.edits:
            image = next(edited) if edit in accepted else TOO_LONG
            images.append(image if image is None or isinstance(image, str) else to_source(image, sized.geometry))
        return EditedImages(images, key.steps * evaluations_per_step(key.guidance))


class PipelineEngine:
    """The engine `pipeline`."""

    def __init__(self, profile: InstructPipeline, device: str, run: Run, acceleration: Acceleration = OFF) -> None:
        from diffusion_service.editors import pipelines  # a slow import that only this engine needs

        self._pipelines, self._device = pipelines, torch.device(device)
        self._editor, self._run = pipelines.PipelineEditor(profile, device, acceleration), run

    def warm_up(self, side: int) -> None:
        """Edit one image on an accelerator; a CPU would take minutes for it."""
        if self._device.type != "cpu":
            keep = np.full((side, side), 255, np.uint8) if self._editor.masked else None
            source = np.zeros((side, side, 3), np.uint8)
            item = self._pipelines.PipelineItem(source, keep, "warm-up", 0, steps=1, guidance=1.0)
            self._editor.edit(item, [item])

    async def edit(
        self, request: InstructRequest, source: Pixels, keep: Pixels | None, deadline: float
    ) -> EditedImages:
        """Each edit is a batch of its own, submitted after the one before it, so that a cancelled request stops."""
        images: list[EditedImage] = []
        evaluations = 0
        items = [
            self._pipelines.PipelineItem(source, keep, edit.instruction, edit.seed, request.steps, request.guidance)
            for edit in request.edits
        ]
        if self._editor.encodes:
            await self._run(self._editor.encode, None, items, deadline)
        for item in items:
            (edited,) = await self._run(self._editor.edit, item, [item], deadline)
            images.append(None if edited is None else edited.image)
            evaluations = max(evaluations, 0 if edited is None else edited.evaluations)
        return EditedImages(images, evaluations)


class ServerEngine:
    """The engine `server`."""

    def __init__(self, profile: InstructServer) -> None:
        from diffusion_service.editors.image_server import ImageServer  # a slow import that only this engine needs

        self._server = ImageServer(profile)

    def warm_up(self, side: int) -> None:
        """Nothing: the server warms up by itself."""

    async def edit(
        self, request: InstructRequest, source: Pixels, keep: Pixels | None, deadline: float
    ) -> EditedImages:
        """An edit that the server refuses is refused; any other failure of one is that of the request.

        So is an edit whose reply is unusable, if that of another edit is usable: then the server's settings are right.
        """
        unusable: list[UnusableReply] = []

        async def edit_one(instruction: str, seed: int) -> EditedImage:
            values: dict[FormField, int | float] = {"seed": seed, "steps": request.steps, "guidance": request.guidance}
            try:
                return await self._server.edit(source, keep, instruction, values, deadline)
            except InvalidInput as refusal:
                return refusal.detail
            except UnusableReply as problem:
                unusable.append(problem)
                return problem.detail

        tasks = [asyncio.ensure_future(edit_one(edit.instruction, edit.seed)) for edit in request.edits]
        try:
            images = list(await asyncio.gather(*tasks))
            if unusable and all(isinstance(image, str) for image in images):
                raise unusable[0]
            return EditedImages(images, 0)
        finally:
            for task in tasks:
                task.cancel()


class Instructor:
    """The profile's engine behind `POST /v1/instructed-edits`."""

    def __init__(
        self, profile: Instruct, networks: StableDiffusion, few_step: StableDiffusion | None, device: str, run: Run
    ) -> None:
        """Load the engine; `networks` are the base's. Raises ValueError and OSError as the editors do."""
        self._regions = profile.regions
        self._sources = Once[bytes, Pixels](CACHED_SOURCES)
        self._engine: InstructEngine
        match profile:
            case InstructPix2Pix():
                self._engine = UNetEngine(InstructPix2PixEditor(load_pix2pix(profile, networks, few_step)), run)
            case OneStep():
                self._engine = UNetEngine(load_one_step(profile, few_step or networks), run)
            case InstructPipeline():
                self._engine = PipelineEngine(profile, device, run, networks.acceleration)
            case InstructServer():
                self._engine = ServerEngine(profile)

    def warm_up(self, side: int) -> None:
        """Edit an image of this side, where that prepares anything."""
        self._engine.warm_up(side)

    async def reply(
        self, request: InstructRequest, find_object: Callable[[Pixels, float], Awaitable[Pixels]], deadline: float
    ) -> InstructReply:
        """The edited images. `find_object` gives the mask (not 0) of the object in an image.

        Raises InvalidInput for a region that the engine cannot restrict itself to, NotFinite if no image is finite.
        """
        if request.region not in self._regions:
            raise InvalidInput(
                f"this editor cannot edit the region {request.region!r}; use {' or '.join(map(repr, self._regions))}"
            )
        png = request.source.png
        source = await asyncio.to_thread(lambda: self._sources.get(sha256(png).digest(), partial(decode, png)))
        if request.region == "all":
            keep = None
        elif request.mask is not None:
            keep = await asyncio.to_thread(_mask, request.mask, source)
        else:
            keep = await find_object(source, deadline)
        if keep is not None and not keep.any():
            edited = EditedImages([NO_OBJECT] * len(request.edits), 0)
        else:
            edited = await self._engine.edit(request, source, keep, deadline)
        return await asyncio.to_thread(_reply, edited, keep)


def _mask(mask: ImagePayload, source: Pixels) -> Pixels:
    """A mask of 0 and 255. Raises InvalidInput unless it has the source's size."""
    values = decode(mask.png, "L")
    if values.shape != source.shape[:2]:
        raise InvalidInput("the mask must have the size of the source; send both from one file")
    return np.where(values > 0, np.uint8(255), np.uint8(0))


def _reply(edited: EditedImages, keep: Pixels | None) -> InstructReply:
    """The reply, with images as PNG. Raises NotFinite if no image is finite and none is refused."""
    if all(image is None for image in edited.images):
        raise NotFinite(NOT_FINITE)
    return InstructReply(
        images=[
            None if image is None or isinstance(image, str) else ImagePayload(png=encode(image))
            for image in edited.images
        ],
        refusals=[image if isinstance(image, str) else "" for image in edited.images],
        keep_mask=None if keep is None else of_source(keep),
        evaluations=edited.evaluations,
    )
