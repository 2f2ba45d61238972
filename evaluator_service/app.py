"""evaluator_service over HTTP: predictions, embeddings, structure, shapes, and the endpoints of every model service.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory evaluator_service.app:create_app --port 8004`
"""

from __future__ import annotations

from importlib.metadata import version

import torch
from fastapi import FastAPI
from transformers.utils.logging import disable_progress_bar

from evaluator_service.model import EvaluatorModel
from shared.arithmetic import native_weights
from shared.devices import prepare_torch
from shared.endpoints import Services
from shared.profiles import load_profile
from shared.schemas.evaluation import (
    EmbedReply,
    EmbedRequest,
    EmbedTextsReply,
    EmbedTextsRequest,
    ExamineReply,
    ExamineRequest,
    ModelsReply,
    PredictReply,
    PredictRequest,
    SegmentReply,
    SegmentRequest,
    ShapesReply,
    ShapesRequest,
    StructureReply,
    StructureRequest,
)
from shared.service import MakeBatcher, ModelService, ServiceSettings
from shared.turns import ComputeTurns

CODE_REVISION = "1"  # increase it whenever the same request gives another reply under the same weights


def create_app(settings: ServiceSettings | None = None, turns: ComputeTurns | None = None) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service`."""
    settings = settings or ServiceSettings()
    profile = load_profile(settings.profile).evaluator

    def load(make_batcher: MakeBatcher) -> EvaluatorModel:
        disable_progress_bar()
        device = prepare_torch(torch, settings)
        weights = native_weights(torch, profile, device, settings.dtype)
        return EvaluatorModel(weights, device, make_batcher, settings.model_origin)

    revision = f"{CODE_REVISION}, onnxruntime {version('onnxruntime')}"
    service = ModelService("evaluator_service", revision, settings, load, turns)

    @service.post(Services.predict)
    async def predictions(request: PredictRequest, deadline: float) -> PredictReply:
        return await service.model.predict(request, deadline)

    @service.post(Services.segment)
    async def segmentations(request: SegmentRequest, deadline: float) -> SegmentReply:
        return await service.model.segment(request, deadline)

    @service.post(Services.examine)
    async def examinations(request: ExamineRequest, deadline: float) -> ExamineReply:
        return await service.model.examine(request)

    @service.post(Services.embed)
    async def embeddings(request: EmbedRequest, deadline: float) -> EmbedReply:
        return await service.model.embed(request, deadline)

    @service.post(Services.embed_texts)
    async def text_embeddings(request: EmbedTextsRequest, deadline: float) -> EmbedTextsReply:
        return await service.model.embed_texts(request, deadline)

    @service.post(Services.structure)
    async def structure(request: StructureRequest, deadline: float) -> StructureReply:
        return await service.model.structure(request)

    @service.post(Services.shapes)
    async def shapes(request: ShapesRequest, deadline: float) -> ShapesReply:
        return await service.model.shapes(request, deadline)

    @service.app.get("/v1/models", description="The models under test that this profile names.")
    async def models() -> ModelsReply:
        return ModelsReply(models=service.model.models_under_test)

    return service.app
