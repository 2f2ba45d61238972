"""The check `recaption`: an image captioned anew still names what a caption of its source names.

The classes are the ground truth, or in segmentation jobs those marked as things. A caption names a class as
`names_class` says, with the words that captions have for people and vehicles. Classes that the caption of the source
does not name do not count, and without any the check is skipped. The profile's captioner writes the captions greedily,
without the method's prompt or limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.methods.words import in_captions, names_class
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest

Recaption = Annotated[
    bool, Field(description="Caption each rendered image; its caption must name the class (one more call per image).")
]


class Captioner(Protocol):
    """The service that `recaption_images` calls."""

    def caption(self, request: CaptionRequest) -> CaptionReply: ...


@dataclass(frozen=True, slots=True)
class NewCaption:
    """A new caption of an image, and the share of the classes named in the source's caption that it names (0 to 1)."""

    caption: str
    named: float


def recaption_images(
    services: Captioner, source: MethodImage, task: TaskDescription, images: Sequence[ImagePayload]
) -> list[NewCaption | None]:
    """New captions of images of one source (at most 16); None for each if the check is skipped."""
    classes = [in_captions(label) for label in _classes(source, task)]
    if classes:
        [before] = services.caption(CaptionRequest(images=[source.image])).captions
        classes = [names for names in classes if names_class(before, names)]
    if not classes:
        return [None] * len(images)
    captions = services.caption(CaptionRequest(images=list(images))).captions
    return [
        NewCaption(caption, float(np.mean([names_class(caption, names) for names in classes]))) for caption in captions
    ]


def _classes(source: MethodImage, task: TaskDescription) -> tuple[str, ...]:
    if task.mask_classes:
        return task.things
    return () if source.ground_truth is None else (source.ground_truth,)
