"""Segmentation: a class for each pixel, scored by the IoU of each class of the mask.

`predicted` is the most frequent class, `probability` its share of the pixels. `detail` of a prediction: `top`, the most
frequent classes with their shares, and `confusion`, pixels by class of the truth and predicted class
(`shared.media.label_maps.pack_counts`). Its image is the label map, with indices of the job's classes.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval, mean_overlap
from gateway.analysis.effects import Integers, Scores, differences
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.original_masks import SMALL, JudgedMasks, MaskedOriginals, have_same_shares, judge_masks
from gateway.analysis.segmentation import (
    LEAST_OF_POOLED_CLASS,
    PooledObstacle,
    class_pixels,
    difference,
    pooled_difference,
    pooled_interval,
    pooled_interval_obstacle,
)
from gateway.analysis.segmentation import scores as pixel_scores
from gateway.kinds.originals import check_one_class, exchange_in_words, exchanges
from gateway.kinds.rows import CompletePair, PredictionRow, SourceNumbers
from gateway.kinds.task_kind import TOP, Fields, KindRows, Measurement, Scored, TaskKind
from gateway.methods.checks import SHAPES, THINGS
from gateway.methods.counterfactual import MethodImage
from shared.media.images import decode, encode
from shared.media.label_maps import (
    OTHER,
    VOID,
    Map,
    class_indices,
    confusion,
    named_overlaps,
    pack_counts,
    unpack_counts,
)
from shared.schemas.evaluation import SegmentReply
from shared.schemas.masks import MAX_MASK_CLASSES
from shared.schemas.metrics import ConfusionPairs, OriginalsCheck, SegmentationMetrics
from shared.schemas.results import Relation
from shared.schemas.scores import lost_labels, with_mean
from shared.seeds import derive_seed
from shared.service.endpoints import Services

OTHER_NAME = "another class"
_CAUSES = (
    "the class ids of the masks, the order of the classes, the ignore value, and the preprocessing (rescale, mean and "
    "std, channels, size)"
)


def _answers(reply: SegmentReply, classes: Sequence[str]) -> Iterator[Map]:
    """One label map after another: only one is in memory as pixels."""
    table = class_indices(reply.classes, classes)
    for label_map in reply.maps:
        yield table[decode(label_map.png, "L")]


def _mask(source: MethodImage) -> Map | None:
    return None if source.mask is None else decode(source.mask.png, "L")


def _without_others(label_map: Map) -> Map:
    """`OTHER` is not evaluated."""
    return np.where(label_map == OTHER, np.uint8(VOID), label_map)


def _judge(label_map: Map, truth: Map | None, classes: Sequence[str]) -> Scored:
    pixels = np.bincount(np.minimum(label_map.ravel(), len(classes)), minlength=len(classes) + 1)
    names = [*classes, OTHER_NAME]
    most = [place for place in np.argsort(-pixels, kind="stable")[:TOP].tolist() if pixels[place]]
    counts = None if truth is None else confusion(truth, label_map, len(classes))
    return Scored(
        names[most[0]],
        float(pixels[most[0]] / label_map.size),
        {} if counts is None else with_mean(named_overlaps(counts, classes)),
        {
            "top": [{"name": names[place], "probability": float(pixels[place] / label_map.size)} for place in most],
            "confusion": None if counts is None else [*pack_counts(counts)],
        },
        encode(label_map),
    )


def _changed(original: Scored, image: Scored) -> bool | None:
    """Whether it misses a class that it detected on the original."""
    return bool(lost_labels(original.scores, image.scores)) if image.detail["confusion"] is not None else None


@dataclass(frozen=True, slots=True)
class Pooled:
    """Confusion counts of pixels (classes × classes + 1), and the number of distinct images that they come from."""

    counts: Integers
    images: int


@dataclass(frozen=True, slots=True)
class PooledPairs:
    """The pixels of the pairs in which both arms are accepted.

    Originals, null arms and sham arms count once for each of their pairs: otherwise images with many accepted edits
    would weigh more among counterfactuals than among the images that these are compared with. `groups` (groups × 2 × 3
    × classes) has the `class_pixels` of counterfactuals, and of the arms that they are compared with. `all_originals`
    counts every source image once, with or without pairs. `behind` (3 × classes × classes + 1) counts the pairs with
    pixels in a cell: of the original, of the null arm, of the counterfactual.
    """

    all_originals: Pooled
    original: Pooled
    null: Pooled
    counterfactual: Pooled
    groups: Integers
    behind: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelScores(Scores):
    """A segmenter's scores, the IoU of each class, with the `pooled` pixels of pairs behind them.

    `losing`, `losing_null`: whether a class detected on the original is lost on the counterfactual, or on the null arm.
    `null_group`: the group of each null arm.
    """

    classes: tuple[str, ...]
    pooled: PooledPairs
    losing: NDArray[np.bool_]
    null_group: Integers
    losing_null: NDArray[np.bool_]


class PixelDetail:
    """Pixels pooled over images, and classes that are lost: 48 bytes per group and class of the job."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes, self._pooled = tuple(classes), _PooledColumns(len(classes))
        self._losing, self._losing_null, self._null_group = array("b"), array("b"), array("q")

    def add(
        self,
        numbers: SourceNumbers,
        original: PredictionRow | None,
        pairs: Sequence[CompletePair],
        unscored: Sequence[CompletePair] = (),
    ) -> None:
        """As in `Detail`."""
        for pair in pairs:
            self._losing.append(bool(lost_labels(pair.original.scores, pair.counterfactual.scores)))
        nulls = {pair.null.counterfactual_id: pair for pair in pairs}  # several edits share a null arm
        for pair in nulls.values():
            self._null_group.append(numbers.group)
            self._losing_null.append(bool(lost_labels(pair.original.scores, pair.null.scores)))
        self._pooled.add(numbers.group, original, [pair for pair in pairs if pair.edit.counted])

    def rows(self, scores: Scores) -> KindRows:
        """As in `Detail`."""
        return KindRows(
            PixelScores(
                **{column.name: getattr(scores, column.name) for column in fields(scores)},
                classes=self._classes,
                pooled=self._pooled.pairs(),
                losing=np.asarray(self._losing).astype(bool),
                null_group=np.asarray(self._null_group),
                losing_null=np.asarray(self._losing_null).astype(bool),
            )
        )


class _PooledColumns:
    """Pooled pixels, gathered source image by source image; `classes` is their number."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._counts = np.zeros((3, classes, classes + 1), np.int64)
        self._behind = np.zeros((3, classes, classes + 1), np.int64)
        self._images = [0, 0, 0]
        self._all, self._sources = np.zeros((classes, classes + 1), np.int64), 0
        self._groups: defaultdict[int, Integers] = defaultdict(lambda: np.zeros((2, 3, classes), np.int64))

    def add(self, group: int, original: PredictionRow | None, pairs: Sequence[CompletePair]) -> None:
        """Add a source image, which belongs to a group: its prediction (None: it has none) and its pairs."""
        if original is not None and original.scores:
            self._all += self._unpack(original)
            self._sources += 1
        if not pairs:
            return
        unchanged = self._unpack(pairs[0].original)
        for pair in pairs:
            counterfactual, reference = self._unpack(pair.counterfactual), self._unpack(pair.reference)
            arms = np.stack([unchanged, self._unpack(pair.null), counterfactual])
            self._counts += arms
            self._behind += arms > 0
            self._groups[group] += np.stack([class_pixels(counterfactual), class_pixels(reference)])
        nulls = {pair.null.counterfactual_id for pair in pairs}  # None: the original
        for arm, images in enumerate((1, len(nulls), len(pairs))):
            self._images[arm] += images

    def pairs(self) -> PooledPairs:
        """All added pairs."""
        original, null, counterfactual = map(Pooled, self._counts, self._images)
        empty = np.zeros((0, 2, 3, self._classes), np.int64)
        groups = np.stack(list(self._groups.values())) if self._groups else empty
        every = Pooled(self._all, self._sources)
        return PooledPairs(every, original, null, counterfactual, groups, self._behind)

    def _unpack(self, row: PredictionRow) -> Integers:
        return _counts(row, self._classes)


def segmentation_metrics(scores: PixelScores, colours: Sequence[str], seed: int) -> SegmentationMetrics:
    """The pooled figures, and the mean difference per source image with its interval. `seed`: the analysis's seed."""
    pooled = scores.pooled
    originals, nulls, counterfactuals = pooled.behind.tolist()
    original, null, counterfactual = (
        pixel_scores(arm.counts, arm.images) for arm in (pooled.original, pooled.null, pooled.counterfactual)
    )
    means = differences(scores, scores.whole).correct
    obstacle = pooled_interval_obstacle(pooled.groups)
    return SegmentationMetrics(
        classes=list(scores.classes),
        colours=list(colours),
        all_originals=pixel_scores(pooled.all_originals.counts, pooled.all_originals.images),
        originals=original,
        nulls=null,
        counterfactuals=counterfactual,
        difference=difference(counterfactual, null),
        delta_iou=float(means.mean()) if len(means) else None,
        interval=mean_interval(means, LEVEL, seed) if len(means) > 1 else None,
        delta_pooled_iou=pooled_difference(pooled.groups),
        pooled_interval=None if obstacle else pooled_interval(pooled.groups),
        no_pooled_interval=obstacle_sentence(obstacle, scores.classes) if obstacle else "",
        lost=clustered_rate(scores.losing, scores.cluster),
        lost_null=clustered_rate(scores.losing_null, scores.null_group),
        pairs=ConfusionPairs(originals=originals, nulls=nulls, counterfactuals=counterfactuals),
    )


def _counts(row: PredictionRow, classes: int) -> Integers:
    """Pixels by class of the truth and predicted class."""
    return unpack_counts(cast("list[int]", row.detail["confusion"]), classes)


def obstacle_sentence(obstacle: PooledObstacle, classes: Sequence[str]) -> str:
    """Why the difference in pooled mIoU has no interval, and what it needs."""
    if obstacle.kind == "all alike":
        return f"the {obstacle.groups} independent images do not differ"
    where, needed = "", str(LEAST_SOURCES)
    if obstacle.kind == "rare class":
        where, needed = f" with “{classes[obstacle.rarest]}”", f"{LEAST_OF_POOLED_CLASS} of every class"
    images = "image" if obstacle.groups == 1 else "images"
    return f"{obstacle.groups} independent {images}{where}; an interval needs {needed}"


class SegmentedOriginals:
    """The originals of a segmenter, 24 bytes a class and image. Without masks its own map is the reference."""

    def __init__(self, classes: Sequence[str], relation: Relation, seed: int) -> None:
        self._classes, self._relation = tuple(classes), relation
        self._seed = derive_seed("originals", seed)
        self._group, self._reference, self._predicted, self._hits = (array("q") for _ in range(4))
        self._halves = np.zeros((2, len(classes), len(classes) + 1), np.int64)

    def add(self, group: int, row: PredictionRow | None) -> None:
        if row is None or not row.scores:
            return
        counts = _counts(row, len(self._classes))
        self._group.append(group)
        self._reference.extend(counts.sum(axis=1).tolist())
        self._predicted.extend(counts.sum(axis=0).tolist())
        self._hits.extend(np.diagonal(counts).tolist())
        self._halves[group % 2] += counts

    def check(self) -> OriginalsCheck | None:
        size = len(self._classes)
        originals = MaskedOriginals(
            np.asarray(self._group),
            np.asarray(self._reference).reshape(-1, size),
            np.asarray(self._predicted).reshape(-1, size + 1),
            np.asarray(self._hits).reshape(-1, size),
            self._halves,
        )
        if self._relation == "metamorphic":
            return check_unlabelled_masks(originals.predicted, self._classes)
        judged = judge_masks(originals, self._seed)
        return None if judged is None else check_masks(judged, self._classes)


def check_unlabelled_masks(predicted: Integers, classes: Sequence[str]) -> OriginalsCheck | None:
    """As `check_unlabelled`, of a segmenter whose masks of all originals have the same pixels of each class."""
    if not len(predicted) or not have_same_shares(predicted):
        return None
    only = np.flatnonzero(predicted.sum(axis=0))
    return check_one_class(classes[int(only[0])] if len(only) == 1 else "", len(predicted))


def check_masks(judged: JudgedMasks, classes: Sequence[str]) -> OriginalsCheck:
    """The check of a segmenter, with its sentence."""
    names = [*classes, OTHER_NAME]
    check = OriginalsCheck(
        right=judged.overlap,
        chance=judged.chance,
        standing=judged.standing,
        only="" if judged.only is None else names[judged.only],
        order=exchanges(judged.order, names),
    )
    return check.model_copy(update={"sentence": _mask_sentence(check, judged)})


def _mask_sentence(check: OriginalsCheck, judged: JudgedMasks) -> str:
    """What to say first of a segmenter; "" if it is sound."""
    overlap = f"mean IoU {judged.overlap.value or 0:.0%} on the {judged.overlap.n} originals"
    bar = f"where a mask of one class, or of chance, has {judged.chance:.0%}"
    if check.standing == "sound":
        return f"M{overlap[1:]}, but {_exchanged(check)}" if check.order else ""
    if judged.chance > 1 - SMALL:
        verdict = "Not testable" if check.standing == "unsound" else "Not shown to be better than chance"
        return (
            f"{verdict}: {overlap}, because the masks of the ground truth have one class alone, the same in all. Check "
            "their values, and whether `void` has one that is a class."
        )
    if check.standing == "open":
        return f"Not shown to be better than chance: {overlap}, {bar}. Check {_CAUSES}, or submit more images."
    if check.order:
        return f"Not testable: {overlap}, because {_exchanged(check)} Then submit again."
    if check.only:
        return f"Not testable: it says `{check.only}` for every pixel, {overlap}. Check {_CAUSES}."
    alike = "its masks are alike, " if judged.alike else ""
    return f"Not testable: {alike}{overlap}, {bar}. Check {_CAUSES}."


def _exchanged(check: OriginalsCheck) -> str:
    return f"{exchange_in_words(check)} Correct the class ids of the masks, the order of the classes, or the label map."


def _figures(rows: KindRows, of: Measurement) -> Fields:
    assert isinstance(rows.scores, PixelScores)
    return {"segmentation": segmentation_metrics(rows.scores, of.colours, of.seed)}


SEGMENTATION = TaskKind(
    name="segmentation",
    models="segmenters",
    does="segments",
    truth="mask",
    truths="masks",
    announced=lambda spec: spec.masks is not None,
    localised=True,
    checks=(SHAPES, THINGS),
    metric="iou",
    right_or_wrong=False,
    level=mean_overlap,
    endpoint=Services.segment,
    answers=_answers,
    truth_of=_mask,
    as_truth=_without_others,
    judge=_judge,
    changed=_changed,
    detail=PixelDetail,
    originals=SegmentedOriginals,
    figures=_figures,
    most_classes=MAX_MASK_CLASSES,
    on_power=(
        " An image counts for each class in its mask. IoU varies less between images than accuracy, so smaller drops "
        "in IoU may be detectable."
    ),
)
