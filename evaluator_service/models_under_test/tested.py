"""All models under test of one evaluator: the operator's, loaded at the start, and uploaded ones, loaded on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from evaluator_service.models_under_test.endpoint import EndpointClassifier, EndpointSegmenter
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.loading import Classifier, Segmenter, load_alias
from evaluator_service.models_under_test.uploads import RunningModel, UploadedModels
from shared.load_progress import reading
from shared.problems import InvalidInput, NotFound
from shared.profile_evaluator import Evaluator, ModelEndpoint, ModelUnderTest
from shared.schemas.evaluation import (
    ExamineReply,
    ExamineRequest,
    ModelUnderTestInfo,
    PredictRequest,
    SegmentRequest,
)
from shared.schemas.service import WeightsInfo

Listed = ModelUnderTest | ModelEndpoint | InProcessModel
Tested = Classifier | Segmenter | EndpointClassifier | EndpointSegmenter | RunningModel


class ModelsUnderTest:
    """Models by alias of the profile or by digest; `listed` and `weights` describe the operator's models."""

    def __init__(
        self, profile: Evaluator, device: str, uploads: UploadedModels, in_process: Mapping[str, InProcessModel]
    ) -> None:
        """Load the operator's models onto `device` (torch's name). `in_process` are objects, by name.

        Raises ValueError if an object has the name of an operator's model.
        """
        if taken := sorted(set(in_process) & set(profile.aliases)):
            raise ValueError(f"the profile has a model under test {taken[0]!r}; choose another name")
        self._named: dict[str, Tested] = {
            **{name: _load(model, device) for name, model in profile.models_under_test.items()},
            **{name: _connect(endpoint) for name, endpoint in profile.endpoints.items()},
        }
        self._named.update(in_process)
        self._uploads = uploads
        aliases: dict[str, Listed] = {**profile.models_under_test, **profile.endpoints, **in_process}
        infos = {name: model.info(f"under test: {name}") for name, model in aliases.items()}
        self.weights: list[WeightsInfo] = list(infos.values())
        self.listed = [
            ModelUnderTestInfo(
                name=name,
                kind=self._named[name].kind,
                classes=self._named[name].classes,
                weights=infos[name].id,
                revision=infos[name].revision,
                licence=model.licence,
                description=model.description,
            )
            for name, model in aliases.items()
        ]

    @asynccontextmanager
    async def classifier(
        self, request: PredictRequest
    ) -> AsyncIterator[Classifier | EndpointClassifier | RunningModel]:
        """The classifier of a request. Raises NotFound for an unknown alias, InvalidInput for a segmenter."""
        async with self._model(request) as model:
            if isinstance(model, Segmenter | EndpointSegmenter) or model.kind != "classification":
                raise InvalidInput(f"{request.model!r} is a segmenter; send it to /v1/segmentations")
            yield model

    @asynccontextmanager
    async def segmenter(self, request: SegmentRequest) -> AsyncIterator[Segmenter | EndpointSegmenter | RunningModel]:
        """The segmenter of a request; raises as `classifier` does."""
        async with self._model(request) as model:
            if not isinstance(model, Segmenter | EndpointSegmenter | RunningModel) or model.kind != "segmentation":
                raise InvalidInput(f"{request.model!r} is a classifier; send it to /v1/predictions")
            yield model

    async def examine(self, request: ExamineRequest, deadline: float) -> ExamineReply:
        """Kind and classes of an upload. Raises InvalidInput if it cannot be used."""
        model = await self._uploads.examine(request.upload, request.largest_side, deadline)
        return ExamineReply(kind=model.kind, classes=model.classes)

    @asynccontextmanager
    async def _model(self, request: PredictRequest | SegmentRequest) -> AsyncIterator[Tested]:
        if request.upload is not None:
            async with self._uploads.using(request.upload) as model:
                yield model
        elif request.model in self._named:
            yield self._named[request.model]
        else:
            aliases = ", ".join(sorted(self._named)) or "none"
            raise NotFound(f"no model under test is named {request.model!r}; this profile has: {aliases}")


def _load(model: ModelUnderTest, device: str) -> Classifier | Segmenter:
    with reading(model):
        return load_alias(model, device=device)


def _connect(endpoint: ModelEndpoint) -> EndpointClassifier | EndpointSegmenter:
    return EndpointSegmenter(endpoint) if endpoint.kind == "segmentation" else EndpointClassifier(endpoint)
