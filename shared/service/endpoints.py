"""The endpoints of the model services, each declared once: a service answers them, the gateway calls them.

`Services` has the POST endpoints, which compute. `INFO` and `MODELS` are GET endpoints, which describe a service. Every
process of the system, model service or not, answers its probes at `HEALTHZ`, `READYZ` and `METRICS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, overload

from shared.schemas.base import Contract
from shared.schemas.boxes import DetectReply, DetectRequest
from shared.schemas.caption import CaptionReply, CaptionRequest
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
from shared.schemas.jobs import Stage
from shared.schemas.language import FillReply, FillRequest, GenerateReply, GenerateRequest, ScoreReply, ScoreRequest
from shared.schemas.questions import AskReply, AskRequest
from shared.schemas.service import ServiceInfo, ServiceName

HEALTHZ = "/healthz"  # the process is alive
READYZ = "/readyz"  # it may get requests
METRICS = "/metrics"  # Prometheus metrics
EXAMINATION_SECONDS = 600.0  # to fetch a model of gigabytes, load it, and run a batch and a large image

Request = TypeVar("Request", bound=Contract)
Reply = TypeVar("Reply", bound=Contract)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Request, Reply]):
    """The path of a request, its request and reply types, and the stage of an image that waits for the reply.

    `deadline`: seconds that a call may take; None for the client's own. `per_image`: the reply's lists with an entry
    for each of the request's `images`; such a request can be sent in parts. As an attribute of `Services` an endpoint
    is the call: `Services.caption` is the endpoint, `services.caption(request)` the reply.
    """

    service: ServiceName
    path: str
    request: type[Request]
    reply: type[Reply]
    stage: Stage
    deadline: float | None = None
    per_image: tuple[str, ...] = ()

    @overload
    def __get__(self, services: None, owner: type) -> Endpoint[Request, Reply]: ...

    @overload
    def __get__(self, services: Services, owner: type) -> Callable[[Request], Reply]: ...

    def __get__(self, services: Services | None, owner: type) -> Endpoint[Request, Reply] | Callable[[Request], Reply]:
        return self if services is None else partial(services.call, self)


@dataclass(frozen=True, slots=True)
class Description(Generic[Reply]):
    """A GET endpoint at which a service describes itself: its path, reply type and description."""

    path: str
    reply: type[Reply]
    about: str


INFO = Description("/v1/info", ServiceInfo, "Weights and revision.")
MODELS = Description("/v1/models", ModelsReply, "The models under test that this profile names.")  # evaluator_service


class Services(ABC):
    """The interface of the model services for their callers: HTTP clients, with or without recording."""

    caption = Endpoint(
        "caption_service", "/v1/captions", CaptionRequest, CaptionReply, "captioning", per_image=("captions",)
    )
    generate = Endpoint("llm_service", "/v1/generate", GenerateRequest, GenerateReply, "proposing")
    score = Endpoint("llm_service", "/v1/score", ScoreRequest, ScoreReply, "proposing")
    fill = Endpoint("llm_service", "/v1/fill", FillRequest, FillReply, "proposing")
    render = Endpoint("diffusion_service", "/v1/renderings", RenderRequest, RenderReply, "rendering")
    edit = Endpoint("diffusion_service", "/v1/edits", EditRequest, EditReply, "rendering")
    corrupt = Endpoint("diffusion_service", "/v1/corruptions", CorruptRequest, CorruptReply, "rendering")
    compose = Endpoint("diffusion_service", "/v1/compositions", ComposeRequest, ComposeReply, "rendering")
    instruct = Endpoint("diffusion_service", "/v1/instructed-edits", InstructRequest, InstructReply, "rendering")
    predict = Endpoint(
        "evaluator_service",
        "/v1/predictions",
        PredictRequest,
        PredictReply,
        "predicting",
        per_image=("probabilities", "places", "usage"),
    )
    segment = Endpoint(
        "evaluator_service", "/v1/segmentations", SegmentRequest, SegmentReply, "predicting", per_image=("maps",)
    )
    detect = Endpoint(
        "evaluator_service", "/v1/detections", DetectRequest, DetectReply, "predicting", per_image=("boxes",)
    )
    ask = Endpoint("evaluator_service", "/v1/answers", AskRequest, AskReply, "predicting", per_image=("answers",))
    examine = Endpoint(
        "evaluator_service", "/v1/examinations", ExamineRequest, ExamineReply, "predicting", EXAMINATION_SECONDS
    )
    embed = Endpoint("evaluator_service", "/v1/embeddings", EmbedRequest, EmbedReply, "checking", per_image=("images",))
    second_embed = Endpoint(
        "evaluator_service", "/v1/second-embeddings", EmbedRequest, EmbedReply, "checking", per_image=("images",)
    )
    domain = Endpoint(
        "evaluator_service", "/v1/domain", DomainRequest, DomainReply, "checking", per_image=("log_odds",)
    )
    embed_texts = Endpoint("evaluator_service", "/v1/text-embeddings", EmbedTextsRequest, EmbedTextsReply, "proposing")
    structure = Endpoint(
        "evaluator_service",
        "/v1/structure",
        StructureRequest,
        StructureReply,
        "checking",
        per_image=("agreements", "moves"),
    )
    judge = Endpoint(
        "evaluator_service", "/v1/judgements", JudgeRequest, JudgeReply, "checking", per_image=("yes", "usage")
    )
    shapes = Endpoint(
        "evaluator_service", "/v1/shapes", ShapesRequest, ShapesReply, "checking", per_image=("outcomes",)
    )

    @abstractmethod
    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """The service's reply. Raises `shared.problems.Problem`."""
