"""Detectors' predictions as rows: their objects and boxes, and `BoxScores` of all pairs of a model.

An object that the check `presence` does not see in an image any more counts neither there nor in the images that this
one is compared with (`alike`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gateway.analysis.detection import (
    COUNTED,
    CROWD,
    DIFFICULT,
    BoxedPair,
    CountingLimits,
    Objects,
    Predicted,
)
from gateway.analysis.effects import Integers, Scores
from gateway.kinds.rows import CompletePair, PredictionRow, SourceNumbers, labels
from gateway.kinds.task_kind import KindRows
from shared.schemas.base import JsonObject
from shared.schemas.boxes import COUNTED_OUTCOMES, BoxSpec, Detected, DetectedObject, Ignored, TrueBox
from shared.schemas.scores import with_mean

NOTHING = "nothing"  # what a detector predicts without a confident box
_IGNORED: dict[Ignored | None, int] = {None: COUNTED, "crowd": CROWD, "difficult": DIFFICULT}


def objects_of(truth: Sequence[TrueBox], numbers: dict[str, int]) -> Objects:
    """Objects by the numbers of their classes.

    A box where an object is gone is tolerated, as one where it is difficult: perhaps the check is wrong.
    """
    gone = [isinstance(thing, DetectedObject) and thing.outcome == "gone" for thing in truth]
    boxes = np.array([thing.box for thing in truth], float).reshape(-1, 4)
    own = np.array([np.nan if thing.area is None else thing.area for thing in truth], float)
    sides = boxes[:, 2:] - boxes[:, :2]
    return Objects(
        boxes,
        np.array([numbers[thing.label] for thing in truth], np.int64),
        np.where(np.isnan(own), sides.prod(axis=1), own),
        np.where(gone, DIFFICULT, np.array([_IGNORED[thing.ignore] for thing in truth], np.int64)),
    )


def boxes_of_rows(rows: Sequence[Sequence[float]]) -> Predicted:
    """Boxes of rows of class number, score, left, top, right, bottom."""
    columns = np.array(rows, float).reshape(-1, 6)
    return Predicted(columns[:, 2:], columns[:, 0].astype(np.int64), columns[:, 1])


def limits_of(rules: BoxSpec, classes: Sequence[str], confidence: float | None = None) -> CountingLimits:
    """What counts: by `confidence`, or by the rules of the job."""
    chosen = [rules.scores.get(name, rules.score) if confidence is None else confidence for name in classes]
    return CountingLimits(rules.iou, np.array(chosen, float))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxScores(Scores):
    """`Scores`, and the boxes of the images behind them.

    `images` are distinct, with the objects that count in their pairs; `pairs` (p × 4) has the places of original, null
    arm, counterfactual and reference arm of every pair that counts, and `cluster_of_pair` its source image or group:
    first those of `rows`, in their order, then those of images without objects. `every` are the places of all
    originals, `group` their groups. `rows` names the label of each row of the scores, and the pair that it belongs to.
    """

    classes: tuple[str, ...]
    rules: BoxSpec
    images: list[BoxedPair]
    pairs: Integers
    counted: NDArray[np.bool_]
    cluster_of_pair: Integers
    every: Integers
    every_group: Integers
    row_pair: Integers
    row_label: list[str]


class BoxDetail:
    """Collects the boxes of predictions: about 50 bytes a box, for every distinct image."""

    def __init__(self, classes: Sequence[str], *, rules: BoxSpec) -> None:
        self._classes, self._rules = tuple(classes), rules
        self._numbers = {name: place for place, name in enumerate(classes)}
        self._images: list[BoxedPair] = []
        self._pairs: list[tuple[int, int, int, int]] = []
        self._counted, self._cluster = array("b"), array("q")
        self._unscored: list[tuple[tuple[int, int, int, int], bool, int]] = []
        self._every, self._group, self._row_pair = array("q"), array("q"), array("q")
        self._row_label: list[str] = []

    def add(
        self,
        numbers: SourceNumbers,
        original: PredictionRow | None,
        pairs: Sequence[CompletePair],
        unscored: Sequence[CompletePair] = (),
    ) -> None:
        """As in `Detail`."""
        if original is None or original.detail["detected"] is None:
            return
        places: dict[tuple[str | None, frozenset[int]], int] = {}

        def place(row: PredictionRow) -> int:
            key = (row.counterfactual_id, _gone(row))
            if key not in places:
                places[key] = len(self._images)
                objects = true_objects(row, self._numbers) or objects_of((), {})
                self._images.append(BoxedPair(objects, all_boxes(row)))
            return places[key]

        self._every.append(place(original))
        self._group.append(numbers.group)
        for pair in pairs:
            for label in labels(pair.original):
                self._row_pair.append(len(self._pairs))
                self._row_label.append(label)
            self._pairs.append(self._places(place, pair))
            self._counted.append(pair.edit.counted)
            self._cluster.append(numbers.group)
        for pair in unscored:
            self._unscored.append((self._places(place, pair), pair.edit.counted, numbers.group))

    @staticmethod
    def _places(place: Callable[[PredictionRow], int], pair: CompletePair) -> tuple[int, int, int, int]:
        return (place(pair.original), place(pair.null), place(pair.counterfactual), place(pair.reference))

    def rows(self, scores: Scores) -> KindRows:
        """As in `Detail`."""
        return KindRows(
            BoxScores(
                **{column.name: getattr(scores, column.name) for column in fields(scores)},
                classes=self._classes,
                rules=self._rules,
                images=self._images,
                pairs=np.array([*self._pairs, *(pair for pair, _, _ in self._unscored)], np.int64).reshape(-1, 4),
                counted=np.array([*self._counted, *(counted for _, counted, _ in self._unscored)], bool),
                cluster_of_pair=np.array([*self._cluster, *(group for _, _, group in self._unscored)], np.int64),
                every=np.asarray(self._every),
                every_group=np.asarray(self._group),
                row_pair=np.asarray(self._row_pair),
                row_label=self._row_label,
            )
        )


def true_objects(row: PredictionRow, numbers: dict[str, int]) -> Objects | None:
    """The objects of an image by a prediction for it; None without a truth."""
    detected = row.detail["detected"]
    return None if detected is None else objects_of(Detected.model_validate(detected).objects, numbers)


def all_boxes(row: PredictionRow) -> Predicted:
    """All boxes of a prediction, confident or not."""
    return boxes_of_rows(cast("list[list[float]]", row.detail["boxes"]))


def recalls(objects: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """The recall of each class, and their mean. `objects` that count: the class of each, and whether it is found."""
    by_class: dict[str, list[bool]] = {}
    for label, is_found in objects:
        by_class.setdefault(label, []).append(is_found)
    return with_mean({label: sum(of_class) / len(of_class) for label, of_class in by_class.items()})


def alike(rows: Sequence[PredictionRow | None]) -> list[PredictionRow | None]:
    """Predictions for images that are compared: an object that is gone from one of the images counts in none."""
    gone = frozenset[int]().union(*(_gone(row) for row in rows if row))
    return [row and _without(row, gone) for row in rows] if gone else [*rows]


def _gone(row: PredictionRow) -> frozenset[int]:
    """The places of the objects that are not in its image any more, by the check `presence`."""
    return frozenset(place for place, thing in enumerate(_outcomes(row)) if thing["outcome"] == "gone")


def _without(row: PredictionRow, gone: frozenset[int]) -> PredictionRow:
    """The prediction scored as if the objects at these places were not there."""
    objects = [{**thing, "outcome": "gone"} if n in gone else thing for n, thing in enumerate(_outcomes(row))]
    counted = [thing for thing in objects if thing["outcome"] in COUNTED_OUTCOMES]
    detected = {**cast("JsonObject", row.detail["detected"]), "objects": objects}
    scores = recalls((thing["label"], thing["outcome"] == "found") for thing in counted)
    return row._replace(scores=scores, detail={**row.detail, "detected": cast("JsonValue", detected)})


def _outcomes(row: PredictionRow) -> list[dict[str, str]]:
    detected = cast("dict[str, list[dict[str, str]]] | None", row.detail.get("detected"))
    return detected["objects"] if detected else []
