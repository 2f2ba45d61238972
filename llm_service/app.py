"""llm_service over HTTP: `POST /v1/generate`, `/v1/score`, `/v1/fill` and the endpoints of every model service.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory llm_service.app:create_app --port 8002`
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import transformers
from fastapi import FastAPI

from llm_service.engines import ENGINES, LanguageModel
from llm_service.generation import MaskedWords, generate
from shared.problems import InvalidInput
from shared.profiles.profile import Language
from shared.schemas.language import (
    FillReply,
    FillRequest,
    GenerateReply,
    GenerateRequest,
    ScoreReply,
    ScoreRequest,
)
from shared.schemas.service import WeightsInfo
from shared.service.devices import Loading, torch_service
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from shared.service.turns import ComputeTurns

CODE_REVISION = "2"  # increase it whenever the same request gives another reply under the same weights


@dataclass(frozen=True, slots=True)
class LanguageModels:
    """The language model, and the masked language model if the profile names one."""

    language: LanguageModel
    masked_words: MaskedWords | None

    @property
    def device(self) -> str:
        return self.language.device

    @property
    def weights(self) -> list[WeightsInfo]:
        return [*self.language.weights, *([self.masked_words.info] if self.masked_words else [])]


def load(loading: Loading[Language]) -> LanguageModels:
    """The profile's language models."""
    weights, make_batcher = loading.weights, loading.make_batcher
    language = ENGINES[weights.engine](loading)
    if weights.masked_words is None:
        return LanguageModels(language, None)
    masked_words = MaskedWords(weights.masked_words, loading.device, make_batcher, weights.max_batch)
    return LanguageModels(language, masked_words)


def create_app(settings: ServiceSettings | None = None, turns: ComputeTurns | None = None) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service.model_service`."""
    service = torch_service(
        torch, transformers, "llm_service", CODE_REVISION, lambda profile: profile.language, load, settings, turns
    )

    @service.post(Services.generate)
    async def generations(request: GenerateRequest, deadline: float) -> GenerateReply:
        return await generate(service.model.language, request, deadline)

    @service.post(Services.score)
    async def scores(request: ScoreRequest, deadline: float) -> ScoreReply:
        scored = await service.model.language.score(request.texts, deadline)
        return ScoreReply(log_likelihoods=[value for value, _ in scored], tokens=[count for _, count in scored])

    @service.post(Services.fill)
    async def fillings(request: FillRequest, deadline: float) -> FillReply:
        if service.model.masked_words is None:
            raise InvalidInput("this profile has no masked language model; name one as [language.masked_words]")
        return await service.model.masked_words.fill(request, deadline)

    return service.app
