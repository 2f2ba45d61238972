"""Whether a detector finds more on its originals than its boxes for other images would; exchanged classes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from gateway.analysis.detection import COUNTED, BoxedPair, CountingLimits, are_alike
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.original_boxes import JudgedBoxes, judge_boxes
from gateway.kinds.detection_rows import NOTHING, all_boxes, limits_of, objects_of, true_objects
from gateway.kinds.originals import exchange_in_words, exchanges
from gateway.kinds.rows import PredictionRow
from shared.schemas.boxes import BoxSpec
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.results import Relation
from shared.seeds import derive_seed

_CAUSES = (
    "the class ids, the label map, the convention of the boxes (corners or sides, pixels or fractions), the score and "
    "IoU of `boxes`, and the preprocessing (rescale, mean and std, channels, letterbox)"
)


class BoxedOriginals:
    """The originals of a detector. Without ground truth its own confident boxes are the reference."""

    def __init__(self, classes: Sequence[str], relation: Relation, seed: int, *, rules: BoxSpec) -> None:
        self._classes, self._relation, self._limits = tuple(classes), relation, limits_of(rules, classes)
        self._numbers = {name: place for place, name in enumerate(classes)}
        self._seed = derive_seed("originals", seed)
        self._images: list[BoxedPair] = []
        self._group = array("q")

    def add(self, group: int, row: PredictionRow | None) -> None:
        objects = None if row is None else true_objects(row, self._numbers)
        if row is not None and objects is not None and (objects.ignore == COUNTED).any():
            self._group.append(group)
            self._images.append(BoxedPair(objects, all_boxes(row)))
        elif row is not None and self._relation == "metamorphic":
            self._group.append(group)
            self._images.append(BoxedPair(objects_of((), {}), all_boxes(row)))

    def check(self) -> OriginalsCheck | None:
        if self._relation == "metamorphic":
            return self._unlabelled()
        judged = judge_boxes(self._images, np.asarray(self._group), self._classes, self._limits, self._seed)
        if judged is None:
            return None
        check = OriginalsCheck(
            right=judged.recall,
            chance=judged.chance,
            standing=judged.standing,
            only=NOTHING if not judged.confident else "" if judged.only is None else self._classes[judged.only],
            order=exchanges(judged.order, self._classes),
        )
        return check.model_copy(update={"sentence": _sentence(check, judged, self._limits)})

    def _unlabelled(self) -> OriginalsCheck | None:
        counting = [self._limits.counting(image.predicted) for image in self._images]
        if len(counting) < LEAST_SOURCES or not all(are_alike(boxes, counting[0]) for boxes in counting):
            return None
        if len(counting[0].label):
            sentence = (
                f"It gives the same boxes for each of the {len(counting)} originals, and without ground truth nothing "
                "shows whether it tells images apart. Submit boxes, or other images."
            )
            return OriginalsCheck(standing="open", sentence=sentence)
        sentence = f"It detects nothing on the {len(counting)} originals, so nothing can be lost. Check {_CAUSES}."
        return OriginalsCheck(standing="open", only=NOTHING, sentence=sentence)


_READ_AS = {
    "transposed": "read as top, left, bottom, right, its boxes find {recall} of the objects: exchange x and y",
    "sides": "read as left, top, width, height, its boxes find {recall} of the objects: convert them to corners",
    "corners as sides": "the ground truth has corners where sides are read, or sides where corners are: with width and "
    "height in place of right and bottom, its boxes find {recall} of the objects",
    "centres": "read as centre, width and height, its boxes find {recall} of the objects: convert them to corners",
    "scaled": "scaled by {x:.2g} horizontally and {y:.2g} vertically, and moved, its boxes find {recall} of the "
    "objects: give them in pixels of the image, before resizing and padding",
    "mirrored": "mirrored from left to right, its boxes find {recall} of the objects: preprocessing may flip images",
    "upside down": "turned upside down, its boxes find {recall} of the objects: its y may count from the bottom",
}


def _sentence(check: OriginalsCheck, judged: JudgedBoxes, limits: CountingLimits) -> str:
    """What to say first of a detector; "" if it is sound and its boxes are best as they are."""
    recall = f"recall {judged.recall.value or 0:.0%} on the {judged.recall.n} originals"
    bar = f"where its boxes for other images have {judged.chance:.0%}"
    misread = judged.misread
    causes = [f"{exchange_in_words(check)} Correct the class ids, the order of the classes, or the label map."]
    causes = causes if check.order else []
    if misread is not None:
        x, y = misread.scale
        causes.append(f"{_READ_AS[misread.convention].format(recall=f'{misread.recall:.0%}', x=x, y=y)}.")
    cause = " And ".join(causes)
    if cause and check.standing != "unsound":
        return f"R{recall[1:]}, but {cause}"
    if judged.only is not None and check.standing != "unsound":
        fault = f"it calls each object that it locates `{check.only}`, whatever its label"
        return f"R{recall[1:]}, but {fault}. Check {_CAUSES}."
    if check.standing == "sound":
        return ""
    if check.standing == "open":
        return f"Not shown to be better than chance: {recall}, {bar}. Check {_CAUSES}, or submit more images."
    if cause:
        return f"Not testable: {recall}, because {cause} Then submit again."
    if check.only == NOTHING:
        highest = "it returns no box at all" if judged.highest is None else f"its highest score is {judged.highest:.2g}"
        least = f"{limits.score.min():g}" if len(limits.score) else "0"
        return f"Not testable: {recall}, since no box has a score from {least} on ({highest}). Check {_CAUSES}."
    return f"Not testable: {recall}, {bar}. Check {_CAUSES}."
