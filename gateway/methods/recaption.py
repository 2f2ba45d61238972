"""The check `recaption`: an image captioned anew still names what a caption of its source names.

Looked for is the ground truth, in segmentation jobs each class marked as a thing, by the rule that edits are held to
(`names_class`, with the words that captions have for people and vehicles). What the captioner does not see in the
source is not held against the image: where it names nothing of it there, the check is not made. Captions are greedy and
the profile's captioner's own, without the method's prompt or limits.
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
    """The one service that `recaptioned` asks."""

    def caption(self, request: CaptionRequest) -> CaptionReply: ...


@dataclass(frozen=True, slots=True)
class Recaptioned:
    """A new caption of an image, and the share of the classes named in the source's caption that it names (0 to 1)."""

    caption: str
    named: float


def recaptioned(
    services: Captioner, source: MethodImage, task: TaskDescription, images: Sequence[ImagePayload]
) -> list[Recaptioned | None]:
    """What new captions say of images of one source, at most 16; None for each where the check cannot be made."""
    wanted = [in_captions(label) for label in _looked_for(source, task)]
    if wanted:
        [before] = services.caption(CaptionRequest(images=[source.image])).captions
        wanted = [names for names in wanted if names_class(before, names)]
    if not wanted:
        return [None] * len(images)
    captions = services.caption(CaptionRequest(images=list(images))).captions
    return [
        Recaptioned(caption, float(np.mean([names_class(caption, names) for names in wanted]))) for caption in captions
    ]


def _looked_for(source: MethodImage, task: TaskDescription) -> tuple[str, ...]:
    if task.mask_classes:
        return task.things
    return () if source.ground_truth is None else (source.ground_truth,)
