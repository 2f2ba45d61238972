"""evaluator_service over HTTP: predictions, embeddings, domain, structure, shapes, and what every model service has.

Alone: `CONTRAFACT_PROFILE=tiny uvicorn --factory evaluator_service.app:create_app --port 8004`
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import torch
import transformers
from fastapi import FastAPI

from evaluator_service.model import EvaluatorModel
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.kinds import KINDS
from evaluator_service.models_under_test.onnx_file import onnx_provider
from evaluator_service.models_under_test.sandbox import hide_process
from shared.profiles.evaluator import Evaluator
from shared.schemas.base import Contract
from shared.schemas.evaluation import ModelsReply
from shared.service.devices import Loading, choose_device, torch_service
from shared.service.endpoints import MODELS, Endpoint, Services
from shared.service.model_service import ModelService
from shared.service.settings import ServiceSettings
from shared.service.turns import ComputeTurns

CODE_REVISION = "4"  # increase it whenever the same request gives another reply under the same weights
Body = TypeVar("Body", bound=Contract)
Reply = TypeVar("Reply", bound=Contract)


def load(loading: Loading[Evaluator], in_process: Mapping[str, InProcessModel] | None = None) -> EvaluatorModel:
    """The profile's scorers, the models under test that it names, and those of this process."""
    return EvaluatorModel(loading.weights, loading.device, loading.make_batcher, loading.settings, in_process)


def create_app(
    settings: ServiceSettings | None = None,
    turns: ComputeTurns | None = None,
    in_process: Mapping[str, InProcessModel] | None = None,
) -> FastAPI:
    """Create the service with `settings` (default: from the environment); see `shared.service.model_service`.

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
    def add(endpoint: Endpoint[Body, Reply], answer: Callable[[EvaluatorModel, Body, float], Awaitable[Reply]]) -> None:
        async def respond(request: Body, deadline: float) -> Reply:
            return await answer(service.model, request, deadline)

        respond.__name__ = endpoint.path.rpartition("/")[2].replace("-", "_")
        service.post(endpoint)(respond)

    for kind in KINDS.values():
        add(kind.endpoint, partial(EvaluatorModel.predict, kind=kind))
    add(Services.examine, EvaluatorModel.examine)
    add(Services.embed, EvaluatorModel.embed)
    add(Services.second_embed, EvaluatorModel.second_embed)
    add(Services.domain, EvaluatorModel.domain)
    add(Services.embed_texts, EvaluatorModel.embed_texts)
    add(Services.structure, EvaluatorModel.structure)
    add(Services.shapes, EvaluatorModel.shapes)
    add(Services.judge, EvaluatorModel.judge)

    @service.get(MODELS)
    async def models() -> ModelsReply:
        return await asyncio.to_thread(service.model.models)
