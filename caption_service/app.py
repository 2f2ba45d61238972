"""caption_service over HTTP: `POST /v1/captions` and the endpoints of every model service.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory caption_service.app:create_app --port 8001`
"""

from __future__ import annotations

import torch
from fastapi import FastAPI
from transformers.utils.logging import disable_progress_bar

from caption_service.engines import ENGINES, Captioner
from caption_service.in_process import choose_device
from shared.arithmetic import native_weights
from shared.profiles import load_profile
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.service import MakeBatcher, ModelService, ServiceSettings
from shared.threads import compute_threads
from shared.turns import ComputeTurns

CODE_REVISION = "1"  # increase it whenever the same request gives another reply under the same weights


def create_app(settings: ServiceSettings | None = None, turns: ComputeTurns | None = None) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service`."""
    settings = settings or ServiceSettings()
    profile = load_profile(settings.profile).caption

    def load(make_batcher: MakeBatcher) -> Captioner:
        disable_progress_bar()
        torch.set_num_threads(compute_threads(settings.threads, torch.get_num_threads()))
        torch.backends.cudnn.deterministic = settings.deterministic
        weights = native_weights(profile, choose_device(settings.device), settings.dtype)
        return ENGINES[profile.engine](weights, settings, make_batcher)

    service = ModelService("caption_service", CODE_REVISION, settings, load, turns)

    @service.post("/v1/captions", CaptionRequest, CaptionReply)
    async def captions(request: CaptionRequest, deadline: float) -> CaptionReply:
        return CaptionReply(captions=await service.model.caption(request, deadline))

    return service.app
