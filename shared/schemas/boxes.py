"""Boxes around objects: of the ground truth, and of a detector's predictions.

A box is left, top, right and bottom in pixels of the canonical image (EXIF orientation applied), as floats from 0 at
the left and top edge of the image: an object that fills an image of 64 × 48 pixels has the box 0, 0, 64, 48. Boxes may
reach beyond the image. Boxes in other conventions are converted at once where they enter.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from shared.schemas.base import MAX_BOXES, Contract, Kind
from shared.schemas.evaluation import ModelRequest
from shared.schemas.masks import Label

BOXED: frozenset[Kind] = frozenset({"detection"})  # kinds whose answers are boxes
MAX_COORDINATE = 1e6  # pixels

Coordinate = Annotated[float, Field(ge=-MAX_COORDINATE, le=MAX_COORDINATE, allow_inf_nan=False)]
Corners = tuple[Coordinate, Coordinate, Coordinate, Coordinate]
Ignored = Literal["crowd", "difficult"]


def _has_an_area(corners: Corners) -> Corners:
    left, top, right, bottom = corners
    if right <= left or bottom <= top:
        raise ValueError(
            f"the box {left:g}, {top:g}, {right:g}, {bottom:g} has no area; give left, top, right and bottom in pixels"
        )
    return corners


Box = Annotated[Corners, AfterValidator(_has_an_area)]


class PredictedBox(Contract):
    """A detector's box with its most probable class and its confidence."""

    box: Box
    label: Label
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class TrueBox(Contract):
    """A box of the ground truth.

    `ignore`: neither missed nor, for predictions that it matches, wrong. A `crowd` (COCO's `iscrowd`) matches those
    whose area lies in it, a `difficult` object (Pascal VOC) those whose IoU suffices. `area` of the object in square
    pixels, if it is not that of the box: sizes are counted by it, as COCO does.
    """

    box: Box
    label: Label
    ignore: Ignored | None = None
    area: Annotated[float | None, Field(ge=0, le=MAX_COORDINATE**2, allow_inf_nan=False)] = None


Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class BoxSpec(Contract):
    """How the boxes of a detector are counted; boxes are sent with the images, and are the ground truth.

    A box predicted with at least the `score` of its class finds an object of this class if their IoU is at least `iou`.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"score": 0.3, "scores": {"person": 0.5}}]})

    iou: Annotated[Share, Field(description="least overlap of a box with the object that it finds")] = 0.5
    score: Annotated[Share, Field(description="least score of a prediction that counts")] = 0.5
    scores: Annotated[dict[Label, Share], Field(max_length=1_000, description="the same for single classes")] = Field(
        default_factory=dict
    )
    choose_scores: Annotated[
        bool,
        Field(
            description="choose, for each model, the score of each class with the highest F1 on the originals, before "
            "anything is rendered; `scores` of single classes stay"
        ),
    ] = False

    def counts(self, box: PredictedBox) -> bool:
        """Whether a predicted box is confident enough."""
        return box.score >= self.scores.get(box.label, self.score)


PredictedBoxes = Annotated[list[PredictedBox], Field(max_length=MAX_BOXES)]
TrueBoxes = Annotated[list[TrueBox], Field(max_length=MAX_BOXES)]


# found: class and place are right. mislocated: the class is right, and the IoU too low, but at least 0.1.
# misclassified: a box of another class is there. missed: none is. ignored: the truth says not to count it. gone: the
# object is not in this image any more, by the check `presence`, and does not count either.
ObjectOutcome = Literal["found", "mislocated", "misclassified", "missed", "ignored", "gone"]
COUNTED_OUTCOMES: frozenset[ObjectOutcome] = frozenset({"found", "mislocated", "misclassified", "missed"})


class DetectedObject(TrueBox):
    """An object of the ground truth, what became of it, and the predicted box that says so."""

    outcome: ObjectOutcome
    prediction: PredictedBox | None = None


class ExtraBox(PredictedBox):
    """A predicted box that belongs to no object, or (`duplicate`) to one that another box has matched already."""

    why: Literal["hallucination", "duplicate"]


class Detected(Contract):
    """What a detector makes of one image: each object of the ground truth, and the boxes beside them."""

    objects: list[DetectedObject]
    extras: list[ExtraBox]


class DetectRequest(ModelRequest):
    """`POST /v1/detections`: the boxes of one detector under test on some images."""


class DetectReply(Contract):
    """Per image the boxes of its own pixels, in any order; those with the highest scores if there are very many.

    Low scores are kept: average precision needs them, and the caller applies its threshold. Boxes without an area are
    left out by the service. The labels are among `classes`.
    """

    classes: list[str]
    boxes: list[PredictedBoxes]

    @model_validator(mode="after")
    def _labels_are_classes(self) -> Self:
        if unknown := sorted({box.label for boxes in self.boxes for box in boxes} - set(self.classes))[:5]:
            raise ValueError(f"the labels {', '.join(map(repr, unknown))} are not among the classes")
        return self
