"""caption_service over HTTP: `POST /v1/captions` and the endpoints of every model service.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory caption_service.app:create_app --port 8001`
"""

from __future__ import annotations

import torch
import transformers
from fastapi import FastAPI

from caption_service.engines import ENGINES, Captioner
from shared.characters import storable
from shared.profiles.profile import Caption
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.service.devices import Loading, torch_service
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from shared.service.turns import ComputeTurns

CODE_REVISION = "1"  # increase it whenever the same request gives another reply under the same weights


def load(loading: Loading[Caption]) -> Captioner:
    """The profile's captioner."""
    return ENGINES[loading.weights.engine](loading)


def create_app(settings: ServiceSettings | None = None, turns: ComputeTurns | None = None) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service.model_service`."""
    service = torch_service(
        torch, transformers, "caption_service", CODE_REVISION, lambda profile: profile.caption, load, settings, turns
    )

    @service.post(Services.caption)
    async def captions(request: CaptionRequest, deadline: float) -> CaptionReply:
        return CaptionReply(captions=[storable(text) for text in await service.model.caption(request, deadline)])

    return service.app
