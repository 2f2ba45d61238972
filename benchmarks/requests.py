"""The requests that DILLEMA sends to each service for some tinyworld images, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.jobs.choices import method_defaults
from gateway.methods import METHODS
from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.model_services.clients import ModelServices
from shared.media.images import encode
from shared.profiles.profile import load_profile
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.evaluation import PredictRequest
from shared.schemas.service import ServiceName
from shared.service.endpoints import Endpoint, Reply, Request
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, sample_scene

TASK = TaskDescription("classify the object in the picture", CLASSES)


class RecordingServices(ModelServices):
    """The plain clients, which record their calls."""

    def __init__(self, urls: Mapping[ServiceName, str]) -> None:
        super().__init__(urls)
        self.calls: list[tuple[Endpoint[Any, Any], Contract]] = []

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """See `ModelServices.call`."""
        self.calls.append((endpoint, request))
        return super().call(endpoint, request)


def sources(count: int) -> list[MethodImage]:
    """The first `count` scenes of split `demo`, with their class."""
    scenes = [sample_scene("demo", index) for index in range(count)]
    return [
        MethodImage(f"benchmark-{index}", ImagePayload(png=encode(render(scene).image)), scene.label)
        for index, scene in enumerate(scenes)
    ]


def work_on(services: ModelServices, image: MethodImage) -> int:
    """Process one image as a worker does, without a database. Returns the number of rendered images."""
    profile = load_profile("tiny")
    spec = METHODS["dillema"]
    parameters = spec.parameters.model_validate(method_defaults("dillema", profile))
    counterfactuals = list(spec.function(image, TASK, services, parameters, 0))
    pictures = [
        image.image,
        *(counterfactual.image for counterfactual in counterfactuals if counterfactual.image is not None),
    ]
    for model in profile.defaults.models:
        services.predict(PredictRequest(model=model, images=pictures))
    return len(pictures) - 1
