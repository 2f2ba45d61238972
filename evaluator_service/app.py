"""evaluator_service over HTTP: predictions, embeddings, domain, structure, shapes, and what every model service has.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory evaluator_service.app:create_app --port 8004`
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version

import torch
import transformers
from fastapi import FastAPI

from evaluator_service.model import EvaluatorModel
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.onnx_models import onnx_provider
from evaluator_service.models_under_test.spawner import hide_process
from shared.devices import Loading, choose_device, torch_service
from shared.endpoints import MODELS, Services
from shared.profile_evaluator import Evaluator
from shared.schemas.evaluation import (
    DomainReply,
    DomainRequest,
    EmbedReply,
    EmbedRequest,
    EmbedTextsReply,
    EmbedTextsRequest,
    ExamineReply,
    ExamineRequest,
    JudgeReply,
    JudgeRequest,
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
from shared.service import ModelService
from shared.service_settings import ServiceSettings
from shared.turns import ComputeTurns

CODE_REVISION = "4"  # increase it whenever the same request gives another reply under the same weights


def load(loading: Loading[Evaluator], in_process: Mapping[str, InProcessModel] | None = None) -> EvaluatorModel:
    """The profile's scorers, the models under test that it names, and those of this process."""
    return EvaluatorModel(loading.weights, loading.device, loading.make_batcher, loading.settings, in_process)


def create_app(
    settings: ServiceSettings | None = None,
    turns: ComputeTurns | None = None,
    in_process: Mapping[str, InProcessModel] | None = None,
) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service`.

    Without settings, the process is the service's own: uploaded models cannot read the keys in its environment.
    `in_process` are further models under test, by name: objects of this process.
    """
    if settings is None:
        hide_process()
    service_settings = settings or ServiceSettings()
    provider = onnx_provider(choose_device(torch, service_settings.device))
    elsewhere = "" if provider.startswith("CPU") else f" {provider}"
    revision = f"{CODE_REVISION}, onnxruntime {version('onnxruntime')}{elsewhere}"
    service = torch_service(
        torch,
        transformers,
        "evaluator_service",
        revision,
        lambda profile: profile.evaluator,
        partial(load, in_process=in_process),
        service_settings,
        turns,
        provider,
    )

    _add_endpoints(service)
    return service.app


def _add_endpoints(service: ModelService[EvaluatorModel]) -> None:
    @service.post(Services.predict)
    async def predictions(request: PredictRequest, deadline: float) -> PredictReply:
        return await service.model.predict(request, deadline)

    @service.post(Services.segment)
    async def segmentations(request: SegmentRequest, deadline: float) -> SegmentReply:
        return await service.model.segment(request, deadline)

    @service.post(Services.examine)
    async def examinations(request: ExamineRequest, deadline: float) -> ExamineReply:
        return await service.model.examine(request, deadline)

    @service.post(Services.embed)
    async def embeddings(request: EmbedRequest, deadline: float) -> EmbedReply:
        return await service.model.embed(request, deadline)

    @service.post(Services.second_embed)
    async def second_embeddings(request: EmbedRequest, deadline: float) -> EmbedReply:
        return await service.model.second_embed(request, deadline)

    @service.post(Services.domain)
    async def domain(request: DomainRequest, deadline: float) -> DomainReply:
        return await service.model.domain(request, deadline)

    @service.post(Services.embed_texts)
    async def text_embeddings(request: EmbedTextsRequest, deadline: float) -> EmbedTextsReply:
        return await service.model.embed_texts(request, deadline)

    @service.post(Services.structure)
    async def structure(request: StructureRequest, deadline: float) -> StructureReply:
        return await service.model.structure(request)

    @service.post(Services.shapes)
    async def shapes(request: ShapesRequest, deadline: float) -> ShapesReply:
        return await service.model.shapes(request, deadline)

    @service.post(Services.judge)
    async def judgements(request: JudgeRequest, deadline: float) -> JudgeReply:
        return await service.model.judge(request, deadline)

    @service.get(MODELS)
    async def models() -> ModelsReply:
        return await asyncio.to_thread(service.model.models)
