"""Did the shapes stay where they were? What an independent segmenter sees in an image, held against the reference.

A segmenter errs, and its errors on the source image say nothing of what was made of it. So of every class the IoU of
its map of the image with the reference counts as a share of what its map of the source reaches, at most 1; a class that
it does not find on the source (IoU below 0.5) is not judged. Of things, each connected region is looked for by itself.
Maps are those of `shared.label_maps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.images import decode
from shared.label_maps import OTHER, VOID, Map
from shared.problems import InvalidInput
from shared.regions import Mask, box_of, connected, overlap
from shared.schemas.evaluation import ShapesOutcome, ShapesReply, ShapesRequest, ThingRegion

FOUND = 0.5  # IoU from which a class, or a thing, counts as found


def in_places(label_map: Map, places: Sequence[int | None]) -> Map:
    """A segmenter's map in the places of the job's classes, given the place of each of its labels."""
    table = np.full(256, OTHER, np.uint8)
    table[: len(places)] = [OTHER if place is None else place for place in places]
    return np.asarray(table[label_map])


@dataclass(frozen=True, slots=True)
class Thing:
    """A connected region of a thing's class in the reference, height × width."""

    place: int
    mask: Mask


class Shapes:
    """The shapes of a source image, as far as a segmenter can judge them.

    `judged` and `unjudged` are places of classes that the reference has, `things` the regions that can be looked for.
    """

    def __init__(self, reference: Map | None, source: Map, places: Sequence[int | None], things: Sequence[int]) -> None:
        """`reference`: the mask; None stands for `source`, the segmenter's map of the source image (both placed).

        `places` are those of the segmenter's labels. Raises ValueError where the sizes differ.
        """
        if reference is not None and reference.shape != source.shape:
            raise ValueError("mask and source image must have the same size")
        known = sorted({place for place in places if place is not None})
        truth = source if reference is None else reference
        there = [place for place in np.unique(truth).tolist() if place < OTHER]
        self._reference = np.where(np.isin(truth, known), truth, np.uint8(VOID))
        reached = {place: self._iou(source, place) for place in there if place in known}
        self._reached = {place: iou for place, iou in reached.items() if iou >= FOUND}
        self.judged = list(self._reached)
        self.unjudged = [place for place in there if place not in self._reached]
        self._regions = [
            Thing(place, mask) for place in things if place in known for mask in connected(self._reference == place)
        ]
        self.things = [one for one in self._regions if self.thing(source, one) >= FOUND]

    def classes(self, found: Map) -> list[float]:
        """Of each judged class, its IoU in a placed map over that in the source's, 0 to 1. Raises ValueError."""
        if found.shape != self._reference.shape:
            raise ValueError("source and image must have the same size; send the image as it came from the editor")
        return [min(1.0, self._iou(found, place) / reached) for place, reached in self._reached.items()]

    def thing(self, found: Map, thing: Thing) -> float:
        """IoU, 0 to 1, of a thing's region with the regions of its class that touch it, other things left out."""
        there = (found == thing.place) & (self._reference != VOID)
        return overlap(thing.mask, [one.mask for one in self._regions if one is not thing], there)

    def _iou(self, found: Map, place: int) -> float:
        wanted, seen = self._reference == place, (found == place) & (self._reference != VOID)
        return float((wanted & seen).sum() / (wanted | seen).sum())


def shapes_reply(request: ShapesRequest, maps: Sequence[Map], places: Sequence[int | None]) -> ShapesReply:
    """The answer to a request, given the segmenter's maps of source and images, and the places of its labels.

    Raises InvalidInput where sizes differ.
    """
    mask = None if request.mask is None else decode(request.mask.png, "L")
    if mask is not None:
        mask = np.where(mask < len(request.classes), mask, np.uint8(VOID))
    source, *images = (in_places(one, places) for one in maps)
    try:
        shapes = Shapes(mask, source, places, [request.classes.index(name) for name in request.things])
        outcomes = [
            ShapesOutcome(classes=shapes.classes(image), things=[shapes.thing(image, one) for one in shapes.things])
            for image in images
        ]
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return ShapesReply(
        judged=[request.classes[place] for place in shapes.judged],
        unjudged=[request.classes[place] for place in shapes.unjudged],
        things=[
            ThingRegion(label=request.classes[one.place], share=float(one.mask.mean()), box=box_of(one.mask))
            for one in shapes.things
        ],
        outcomes=outcomes,
    )
