"""What a method is given for one source image, and step 1 of every method: the caption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gateway.methods.checks import skipped_checks
from gateway.methods.counterfactual import MethodImage, Services, TaskDescription
from shared.schemas.base import Contract
from shared.schemas.caption import CaptionRequest
from shared.seeds import derive_seed

P = TypeVar("P", bound=Contract, covariant=True)


@dataclass(frozen=True, slots=True)
class Inputs(Generic[P]):
    """The arguments of a method, with its name and revision: every step takes them."""

    method: str
    revision: str
    image: MethodImage
    task: TaskDescription
    services: Services
    parameters: P
    seed: int

    @property
    def other_classes(self) -> tuple[str, ...]:
        """The label set without the ground truth (all of it where that is not known)."""
        return tuple(label for label in self.task.classes if label != self.image.ground_truth)

    def derive_seed(self, *parts: str | int) -> int:
        """A seed that belongs to this source image, method, revision and job."""
        return derive_seed(self.image.id, self.method, self.revision, self.seed, *parts)

    def lineage(self, caption: str, **more: Any) -> dict[str, Any]:
        """What the lineages of all counterfactuals of the source image have in common."""
        return {
            "method": self.method,
            "revision": self.revision,
            "parameters": self.parameters.model_dump(mode="json"),
            "skipped_checks": list(skipped_checks(self.image, self.task)),
            "caption": caption,
            **more,
        }


class CaptionParameters(Protocol):
    """The captioner's parameters, which every method with a caption has."""

    @property
    def caption_prompt(self) -> str: ...
    @property
    def caption_min_tokens(self) -> int: ...
    @property
    def caption_max_tokens(self) -> int: ...
    @property
    def caption_beams(self) -> int: ...


def write_caption(image: MethodImage, services: Services, parameters: CaptionParameters) -> str:
    """The caption of the source image, in one line."""
    request = CaptionRequest(
        images=[image.image],
        prompt=parameters.caption_prompt,
        min_tokens=parameters.caption_min_tokens,
        max_tokens=parameters.caption_max_tokens,
        beams=parameters.caption_beams,
    )
    return " ".join(services.caption(request).captions[0].split())
