"""Check that shapes stayed in place: compare an independent segmenter's map of an image with the reference.

The segmenter's errors on the source image must not count against images derived from it. So each class's IoU with the
reference is divided by the segmenter's IoU on the source, capped at 1. A class that it does not detect on the source
(IoU below 0.5) is not judged. For things, each connected region is checked separately. Where the ground truth is
boxes, the pixels of its class in each box are compared with those in the source. Maps are label maps of
`shared.media.label_maps`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.media.images import decode
from shared.media.label_maps import OTHER, VOID, Map
from shared.media.regions import Mask, box_of, connected_regions, overlap
from shared.problems import InvalidInput
from shared.schemas.evaluation import BoxedThing, ShapesOutcome, ShapesReply, ShapesRequest, ThingRegion

DETECTED = 0.5  # lowest IoU at which a class or a thing counts as detected
SEEN = 0.1  # least share of a box that its class has in the source if the segmenter sees the object there

_OTHER_SIZE = "source and image must have the same size; send the image as it came from the editor"


def to_job_classes(label_map: Map, places: Sequence[int | None]) -> Map:
    """Convert a segmenter's map to the job's class indices, given the class index of each of its labels."""
    table = np.full(256, OTHER, np.uint8)
    table[: len(places)] = [OTHER if index is None else index for index in places]
    return np.asarray(table[label_map])


@dataclass(frozen=True, slots=True)
class Thing:
    """A connected region of a thing's class in the reference, height × width."""

    place: int
    mask: Mask


class Shapes:
    """The shapes of a source image that a segmenter can judge.

    `judged` and `unjudged` are indices of classes that the reference has, `things` the regions that can be checked.
    """

    def __init__(self, reference: Map | None, source: Map, places: Sequence[int | None], things: Sequence[int]) -> None:
        """`reference`: the mask, or None to use `source`, the segmenter's map of the source image.

        Both hold the job's class indices; `places` are the class indices of the segmenter's labels. Raises ValueError
        if the sizes differ.
        """
        if reference is not None and reference.shape != source.shape:
            raise ValueError("mask and source image must have the same size")
        detectable = sorted({index for index in places if index is not None})
        truth = source if reference is None else reference
        present = [index for index in np.unique(truth).tolist() if index < OTHER]
        self._reference = np.where(np.isin(truth, detectable), truth, np.uint8(VOID))
        source_ious = {index: self._iou(source, index) for index in present if index in detectable}
        self._reached = {index: iou for index, iou in source_ious.items() if iou >= DETECTED}
        self.judged = list(self._reached)
        self.unjudged = [index for index in present if index not in self._reached]
        self._regions = [
            Thing(index, mask)
            for index in things
            if index in detectable
            for mask in connected_regions(self._reference == index)
        ]
        self.things = [region for region in self._regions if self.thing(source, region) >= DETECTED]

    def classes(self, label_map: Map) -> list[float]:
        """Each judged class's IoU in a map, relative to that in the source's map, 0 to 1. Raises ValueError."""
        if label_map.shape != self._reference.shape:
            raise ValueError(_OTHER_SIZE)
        return [min(1.0, self._iou(label_map, index) / reached) for index, reached in self._reached.items()]

    def thing(self, label_map: Map, thing: Thing) -> float:
        """IoU, 0 to 1, of a thing's region with the regions of its class that touch it, excluding other things."""
        predicted = (label_map == thing.place) & (self._reference != VOID)
        return overlap(thing.mask, [region.mask for region in self._regions if region is not thing], predicted)

    def _iou(self, label_map: Map, index: int) -> float:
        expected, predicted = self._reference == index, (label_map == index) & (self._reference != VOID)
        return float((expected & predicted).sum() / (expected | predicted).sum())


def boxes_left(boxes: Sequence[BoxedThing], classes: Sequence[str], source: Map, image: Map) -> list[float | None]:
    """For each box the pixels of its class in a map relative to those in the source's, at most 1.

    None where these are too few to say that the segmenter sees the object. Raises ValueError if the sizes differ.
    """
    if image.shape != source.shape:
        raise ValueError(_OTHER_SIZE)
    left: list[float | None] = []
    for thing in boxes:
        start, top, end, bottom = thing.box
        window = (
            slice(max(0, math.floor(top)), max(0, math.ceil(bottom))),
            slice(max(0, math.floor(start)), max(0, math.ceil(end))),
        )
        before, after = (np.count_nonzero(seen[window] == classes.index(thing.label)) for seen in (source, image))
        left.append(min(1.0, after / before) if before and before >= SEEN * source[window].size else None)
    return left


def shapes_reply(request: ShapesRequest, maps: Sequence[Map], places: Sequence[int | None]) -> ShapesReply:
    """Build the reply from the segmenter's maps of source and images, and the class indices of its labels.

    Raises InvalidInput if sizes differ.
    """
    mask = None if request.mask is None else decode(request.mask.png, "L")
    if mask is not None:
        mask = np.where(mask < len(request.classes), mask, np.uint8(VOID))
    source, *images = (to_job_classes(label_map, places) for label_map in maps)
    try:
        if request.boxes:
            left = [boxes_left(request.boxes, request.classes, source, image) for image in images]
            outcomes = [ShapesOutcome(classes=[], things=[], boxes=of_image) for of_image in left]
            return ShapesReply(judged=[], unjudged=[], things=[], outcomes=outcomes)
        shapes = Shapes(mask, source, places, [request.classes.index(name) for name in request.things])
        outcomes = [
            ShapesOutcome(classes=shapes.classes(image), things=[shapes.thing(image, thing) for thing in shapes.things])
            for image in images
        ]
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return ShapesReply(
        judged=[request.classes[index] for index in shapes.judged],
        unjudged=[request.classes[index] for index in shapes.unjudged],
        things=[
            ThingRegion(label=request.classes[thing.place], share=float(thing.mask.mean()), box=box_of(thing.mask))
            for thing in shapes.things
        ],
        outcomes=outcomes,
    )
