"""diffusion_service over HTTP: renderings, edits by prompt or instruction, corruptions, compositions.

It also has the endpoints of every model service.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory diffusion_service.app:create_app --port 8003`
"""

from __future__ import annotations

import logging

import torch
import transformers
from fastapi import FastAPI

from diffusion_service.acceleration import Acceleration
from diffusion_service.model import DiffusionModel
from shared.profiles.diffusion import Diffusion
from shared.schemas.diffusion import (
    ComposeReply,
    ComposeRequest,
    CorruptReply,
    CorruptRequest,
    EditReply,
    EditRequest,
    InstructReply,
    InstructRequest,
    RenderReply,
    RenderRequest,
)
from shared.service.devices import Loading, torch_service
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from shared.service.turns import ComputeTurns

CODE_REVISION = "2"  # increase it whenever the same request gives another reply under the same weights
logger = logging.getLogger("contrafact.diffusion")


def batches_at_once(settings: ServiceSettings, device: str) -> int:
    """The number of concurrent batches: the setting's on a CPU with plain networks; else 1, with the reason in the log.

    One larger batch uses a GPU fully. Compilation and the choice of an attention kernel apply to the whole process.
    """
    if settings.batches_at_once == 1:
        return 1
    if torch.device(device).type == "cpu" and settings.compile == "off" and settings.attention == "auto":
        return settings.batches_at_once
    logger.info("one batch at a time: CONTRAFACT_BATCHES_AT_ONCE is for a CPU without compiling or attention kernels")
    return 1


def load(loading: Loading[Diffusion]) -> DiffusionModel:
    """The profile's generator, with the acceleration that the settings name."""
    settings, device = loading.settings, loading.device
    acceleration_settings = Acceleration(
        settings.compile, settings.attention, settings.pinned_copies, settings.vae_dtype
    )
    return DiffusionModel(
        loading.weights,
        device,
        loading.make_batcher,
        deterministic=settings.deterministic,
        batches_at_once=batches_at_once(settings, device),
        acceleration=acceleration_settings.on(device, loading.weights.base.dtype),
    )


def create_app(settings: ServiceSettings | None = None, turns: ComputeTurns | None = None) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service.model_service`."""
    service = torch_service(
        torch,
        transformers,
        "diffusion_service",
        CODE_REVISION,
        lambda profile: profile.diffusion,
        load,
        settings,
        turns,
    )

    @service.post(Services.render)
    async def renderings(request: RenderRequest, deadline: float) -> RenderReply:
        return await service.model.render(request, deadline)

    @service.post(Services.edit)
    async def edits(request: EditRequest, deadline: float) -> EditReply:
        return await service.model.edit(request, deadline)

    @service.post(Services.corrupt)
    async def corruptions(request: CorruptRequest, deadline: float) -> CorruptReply:
        return await service.model.corrupt(request)

    @service.post(Services.compose)
    async def compositions(request: ComposeRequest, deadline: float) -> ComposeReply:
        return await service.model.compose(request, deadline)

    @service.post(Services.instruct)
    async def instructed_edits(request: InstructRequest, deadline: float) -> InstructReply:
        return await service.model.instruct(request, deadline)

    return service.app
