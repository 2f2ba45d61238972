"""llm_service over HTTP: `POST /v1/generate`, `POST /v1/score`, and what every model service answers.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory llm_service.app:create_app --port 8002`
"""

from __future__ import annotations

import threading

import torch
from fastapi import FastAPI
from transformers.utils.logging import disable_progress_bar

from llm_service.engines import ENGINES, LanguageModel
from llm_service.generation import generate
from shared.profiles import load_profile
from shared.schemas.language import GenerateReply, GenerateRequest, ScoreReply, ScoreRequest
from shared.service import MakeBatcher, ModelService, ServiceSettings

CODE_REVISION = "1"  # raise it whenever the same request would give another reply under the same weights


def create_app(settings: ServiceSettings | None = None, compute_lock: threading.Lock | None = None) -> FastAPI:
    """The service under `settings` (by default: the environment's); see `shared.service`."""
    settings = settings or ServiceSettings()
    profile = load_profile(settings.profile).language

    def load(make_batcher: MakeBatcher) -> LanguageModel:
        disable_progress_bar()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        return ENGINES[profile.engine](profile, settings, make_batcher)

    service = ModelService("llm_service", CODE_REVISION, settings, load, compute_lock)

    @service.post("/v1/generate", GenerateRequest, GenerateReply)
    async def generations(request: GenerateRequest, deadline: float) -> GenerateReply:
        return await generate(service.model, request, deadline)

    @service.post("/v1/score", ScoreRequest, ScoreReply)
    async def scores(request: ScoreRequest, deadline: float) -> ScoreReply:
        found = await service.model.score(request.texts, deadline)
        return ScoreReply(log_likelihoods=[value for value, _ in found], tokens=[count for _, count in found])

    return service.app
