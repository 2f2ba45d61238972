"""All models under test of one evaluator: the operator's, loaded at the start, and the uploads of users, on demand."""

from __future__ import annotations

from evaluator_service.models_under_test.endpoint import EndpointClassifier
from evaluator_service.models_under_test.loading import Classifier, load_alias
from evaluator_service.models_under_test.segmentation import ImageSegmenter
from evaluator_service.models_under_test.uploads import UploadedModels
from shared.problems import InvalidInput, NotFound
from shared.profiles import Evaluator, ModelEndpoint, ModelUnderTest
from shared.schemas.evaluation import (
    ExamineReply,
    ExamineRequest,
    ModelUnderTestInfo,
    PredictRequest,
    SegmentRequest,
)
from shared.schemas.service import WeightsInfo


class ModelsUnderTest:
    """The models, by alias of the profile or by digest; `listed` are the operator's, `weights` are what they run."""

    def __init__(self, profile: Evaluator, device: str, model_origin: str) -> None:
        """Load the operator's onto `device` (torch's name); uploads are fetched from `model_origin` alone."""
        self._networks = {name: load_alias(model, device=device) for name, model in profile.models_under_test.items()}
        self._endpoints = {name: EndpointClassifier(endpoint) for name, endpoint in profile.endpoints.items()}
        self._uploads = UploadedModels(model_origin, device)
        aliases: dict[str, ModelUnderTest | ModelEndpoint] = {**profile.models_under_test, **profile.endpoints}
        infos = {name: model.info(f"under test: {name}") for name, model in aliases.items()}
        self.weights: list[WeightsInfo] = list(infos.values())
        self.listed = [
            ModelUnderTestInfo(
                name=name,
                task=_task(self._networks[name]) if name in self._networks else "classification",
                classes=(self._networks.get(name) or self._endpoints[name]).classes,
                weights=infos[name].id,
                revision=infos[name].revision,
                licence=model.licence,
                description=model.description,
            )
            for name, model in aliases.items()
        ]

    def endpoint(self, request: PredictRequest) -> EndpointClassifier | None:
        """The server that answers a request, where one does."""
        return None if request.upload else self._endpoints.get(request.model)

    async def classifier(self, request: PredictRequest) -> Classifier:
        """The classifier of a request. Raises NotFound for an unknown alias, InvalidInput for a segmenter."""
        found = await self._network(request)
        if isinstance(found, ImageSegmenter):
            raise InvalidInput(f"{request.model!r} is a segmenter; ask it at /v1/segmentations")
        return found

    async def segmenter(self, request: SegmentRequest) -> ImageSegmenter:
        """The segmenter of a request; raises as `classifier` does."""
        found = await self._network(request)
        if not isinstance(found, ImageSegmenter):
            raise InvalidInput(f"{request.model!r} is a classifier; ask it at /v1/predictions")
        return found

    async def examine(self, request: ExamineRequest) -> ExamineReply:
        """What an upload is. Raises InvalidInput for one that cannot be used."""
        found = await self._uploads.get(request.upload)
        return ExamineReply(task=_task(found), classes=found.classes)

    async def _network(self, request: PredictRequest | SegmentRequest) -> Classifier | ImageSegmenter:
        if request.upload is not None:
            return await self._uploads.get(request.upload)
        if request.model not in self._networks:
            known = ", ".join(sorted([*self._networks, *self._endpoints])) or "none"
            raise NotFound(f"no model under test is named {request.model!r}; this profile has: {known}")
        return self._networks[request.model]


def _task(network: Classifier | ImageSegmenter) -> str:
    return "segmentation" if isinstance(network, ImageSegmenter) else "classification"
