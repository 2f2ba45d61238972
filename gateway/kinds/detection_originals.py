"""Whether a detector finds more on its originals than its boxes for other images would; exchanged classes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from gateway.analysis.certainty import LEVEL, mean_overlap
from gateway.analysis.detection import COUNTED, FOUND, MISCLASSIFIED, MOST_COMPARED, BoxedPair, MatchedObjects
from gateway.analysis.effects import Integers, Originals, Units
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.originals import SOUND, judge_originals
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
        if not self._images:
            return None
        group = np.asarray(self._group)
        matched = [self._limits.match(image) for image in self._images]
        recall = np.array([matching.share_found for matching in matched])
        chance = np.array([self._limits.match(image).share_found for image in self._exchanged(group)])
        order = self._classes_exchanged(group, matched)
        right = mean_overlap(recall, group, self._seed)
        excess = Units.of(group, group).means(recall - chance.mean())
        half = 1.0
        if len(excess) > 1:
            half = float(t.ppf((1 + LEVEL) / 2, len(excess) - 1) * excess.std(ddof=1) / np.sqrt(len(excess)))
        low, high = float(excess.mean()) - half, float(excess.mean()) + half
        check = OriginalsCheck(
            right=right,
            chance=float(chance.mean()),
            standing="sound" if low > 0 else "unsound" if order or high < SOUND * (1 - chance.mean()) else "open",
            order=exchanges(order, self._classes),
        )
        return check.model_copy(update={"sentence": self._sentence(check)})

    def _unlabelled(self) -> OriginalsCheck | None:
        boxes = sum(int(self._limits.are_confident(image.predicted).sum()) for image in self._images)
        if boxes or len(self._images) < LEAST_SOURCES:
            return None
        sentence = f"It detects nothing on the {len(self._images)} originals, so nothing can be lost. Check {_CAUSES}."
        return OriginalsCheck(standing="open", only=NOTHING, sentence=sentence)

    def _exchanged(self, group: Integers) -> list[BoxedPair]:
        """Each image's objects with the boxes for an image of another group: what would be found by chance."""
        chosen = np.random.default_rng(self._seed).permutation(len(group))[:MOST_COMPARED]
        order = chosen[np.argsort(group[chosen], kind="stable")]
        most = int(np.unique(group[order], return_counts=True)[1].max())
        others = np.roll(order, most)
        return [
            BoxedPair(self._images[place].objects, self._images[other].predicted)
            for place, other in zip(order.tolist(), others.tolist(), strict=True)
        ]

    def _classes_exchanged(self, group: Integers, matched: Sequence[MatchedObjects]) -> dict[int, int]:
        """Predicted class → the class meant, if an exchange of classes explains how located objects are named."""
        truth, predicted, groups = array("q"), array("q"), array("q")
        for name, image, matching in zip(group.tolist(), self._images, matched, strict=True):
            confident = image.predicted.label[self._limits.are_confident(image.predicted)]
            for place in np.flatnonzero(np.isin(matching.outcome, (FOUND, MISCLASSIFIED))).tolist():
                truth.append(int(image.objects.label[place]))
                predicted.append(int(confident[matching.by[place]]))
                groups.append(name)
        rank = 1 + (np.asarray(truth) != np.asarray(predicted)).astype(np.int64)
        located = Originals(rank, np.asarray(groups), np.asarray(truth), np.asarray(predicted), self._classes)
        judged = judge_originals(located, len(self._classes), self._seed)
        return {} if judged is None else judged.order

    def _sentence(self, check: OriginalsCheck) -> str:
        """What to say first of a detector; "" if it is sound."""
        right = check.right
        recall = (
            f"recall {0 if right is None or right.value is None else right.value:.0%} on {len(self._images)} originals"
        )
        bar = f"where its boxes for other images have {check.chance or 0:.0%}"
        order = f"{exchange_in_words(check)} Correct the class ids, the order of the classes, or the label map."
        if check.standing == "sound":
            return f"R{recall[1:]}, but {order}" if check.order else ""
        if check.standing == "open":
            return f"Not shown to be better than chance: {recall}, {bar}. Check {_CAUSES}, or submit more images."
        return f"Not testable: {recall}, " + (
            f"because {order} Then submit again." if check.order else f"{bar}. Check {_CAUSES}."
        )
