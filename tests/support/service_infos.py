"""Services' descriptions of themselves."""

from __future__ import annotations

from gateway.operations.doctor import (
    needed_weights,
)
from shared import __version__
from shared.profiles.profile import load_profile
from shared.profiles.weights import Weights
from shared.schemas.service import GpuInfo, ServiceInfo, ServiceName, WeightsInfo

PAPER = load_profile("paper")


def info(name: ServiceName, gpu: GpuInfo | None = None, **changes: object) -> ServiceInfo:
    """A service as it should be under profile `paper`."""
    weights = [
        WeightsInfo(
            role=str(place),
            id=source.id if isinstance(source, Weights) else source.model,
            revision=source.revision,
            dtype="float16",
            licence=source.licence,
        )
        for place, source in enumerate(needed_weights(PAPER)[name])
    ]
    service_info = ServiceInfo(
        service=name,
        profile="paper",
        device="cuda:0",
        deterministic=False,
        revision="1",
        weights=weights,
        version=__version__,
        gpu=gpu,
    )
    return service_info.model_copy(update=changes)


def evaluator_with_scorer(revision: str) -> ServiceInfo:
    """An evaluator whose scorer is of a revision."""
    return ServiceInfo(
        service="evaluator_service",
        profile="tiny",
        device="cpu",
        deterministic=True,
        revision="1",
        weights=[WeightsInfo(role="scorer", id="clip", revision=revision, dtype="float32", licence="MIT")],
        version="1",
    )
