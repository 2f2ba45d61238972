"""caption_service over HTTP: `POST /v1/captions` and the endpoints of every model service.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory caption_service.app:create_app --port 8001`
"""

from __future__ import annotations

import torch
from fastapi import FastAPI
from transformers.utils.logging import disable_progress_bar

from caption_service.engines import ENGINES, Captioner
from shared.arithmetic import native_weights
from shared.devices import prepare_torch
from shared.endpoints import Services
from shared.profiles import load_profile
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.service import MakeBatcher, ModelService, ServiceSettings
from shared.turns import ComputeTurns

CODE_REVISION = "1"  # increase it whenever the same request gives another reply under the same weights


def create_app(settings: ServiceSettings | None = None, turns: ComputeTurns | None = None) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service`."""
    settings = settings or ServiceSettings()
    profile = load_profile(settings.profile).caption

    def load(make_batcher: MakeBatcher) -> Captioner:
        disable_progress_bar()
        weights = native_weights(torch, profile, prepare_torch(torch, settings), settings.dtype)
        return ENGINES[profile.engine](weights, settings, make_batcher)

    service = ModelService("caption_service", CODE_REVISION, settings, load, turns)

    @service.post(Services.caption)
    async def captions(request: CaptionRequest, deadline: float) -> CaptionReply:
        return CaptionReply(captions=await service.model.caption(request, deadline))

    return service.app
