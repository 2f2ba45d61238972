"""What a detector finds, loses and hallucinates under a method, at any scores, beside COCO's AP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.analysis.detection import (
    DUPLICATE,
    FOUND,
    HALLUCINATION,
    IGNORED,
    MOST_COMPARED,
    BoxedPair,
    CountingLimits,
    MatchedObjects,
    average_precision,
    best_scores,
    losing,
    precision_differences,
    sizes,
)
from gateway.analysis.effects import Floats, Integers, Scores, Units, differences
from gateway.kinds.detection_rows import BoxScores, all_boxes, limits_of, recalls, true_objects
from gateway.kinds.rows import PredictionRow
from gateway.kinds.task_kind import Fields, KindRows, Measurement
from shared.schemas.boxes import BoxSpec
from shared.schemas.effects import Interval
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.metrics import (
    AveragePrecision,
    DetectionMetrics,
    DetectionScores,
    FoundObjects,
    ObjectSize,
    PrecisionDifference,
    PrecisionFigure,
)
from shared.schemas.results import ModelResults
from shared.seeds import derive_seed

SIZES: tuple[ObjectSize, ...] = ("small", "medium", "large")
NEARBY = 0.1  # of the score, where findings are repeated

_Places = tuple[Integers, Integers]  # of the images of an arm, which may repeat, and their source images or groups


class _Precision(NamedTuple):
    """Average precision, over all scores: of each arm, and that of counterfactuals less that of reference arms."""

    of_arms: Mapping[str, AveragePrecision]
    differences: dict[PrecisionFigure, PrecisionDifference]


def _precision_of(scores: BoxScores, arms: Mapping[str, _Places], seed: int) -> _Precision:
    def images_at(places: Integers) -> list[BoxedPair]:
        return [scores.images[place] for place in places.tolist()]

    classes = len(scores.classes)
    of_arms = {name: average_precision(images_at(places), classes) for name, (places, _) in arms.items()}
    counterfactuals, cluster = arms["counterfactuals"]
    references = images_at(scores.pairs[scores.counted, 3])
    differences = precision_differences(images_at(counterfactuals), references, cluster, classes, seed)
    return _Precision(of_arms, differences)


def detection_metrics(
    scores: BoxScores, seed: int, confidence: float | None = None, reported: DetectionMetrics | None = None
) -> DetectionMetrics:
    """The figures of one model under one method. `seed`: the analysis's seed.

    `reported`: those at another confidence, whose average precision is the same.
    """
    limits = limits_of(scores.rules, scores.classes, confidence)
    matched = [limits.match(image) for image in scores.images]
    pairs, cluster = scores.pairs[scores.counted], scores.cluster_of_pair[scores.counted]
    original, null, counterfactual, reference = pairs.T
    arms = {
        "all_originals": (scores.every, scores.every_group),
        "originals": (original, cluster),
        "nulls": (null, cluster),
        "counterfactuals": (counterfactual, cluster),
    }
    if reported is None:
        precision = _precision_of(scores, arms, seed)
    else:
        of_arms = {name: getattr(reported, name).precision for name in arms}
        precision = _Precision(of_arms, reported.precision_differences)
    of_all = precision.differences.get("ap")
    means = differences(scores, scores.whole).correct
    hallucinating = np.array([bool((matching.fate == HALLUCINATION).any()) for matching in matched], bool)
    more = Units.of(cluster, cluster).means(
        hallucinating[counterfactual].astype(float) - hallucinating[reference].astype(float)
    )
    return DetectionMetrics(
        classes=list(scores.classes),
        iou=limits.iou,
        score=scores.rules.score if confidence is None else confidence,
        scores=scores.rules.scores if confidence is None else {},
        chosen=scores.rules.choose_scores and confidence is None,
        **{name: _detection_scores(scores, matched, arm, precision.of_arms[name]) for name, arm in arms.items()},
        delta_recall=float(means.mean()) if len(means) else None,
        interval=_interval(means, seed),
        delta_ap=of_all and of_all.difference,
        ap_interval=of_all and of_all.interval,
        precision_differences=precision.differences,
        delta_hallucinating=float(more.mean()) if len(more) else None,
        hallucinating_interval=_interval(more, seed),
        lost=clustered_rate(losing(matched, original, counterfactual), cluster),
        lost_null=clustered_rate(losing(matched, original, null), cluster),
    )


def _interval(means: Floats, seed: int) -> Interval | None:
    return mean_interval(means, LEVEL, seed) if len(means) > 1 else None


def _detection_scores(
    scores: BoxScores, matched: Sequence[MatchedObjects], arm: _Places, precision: AveragePrecision
) -> DetectionScores:
    """The figures of the images of an arm."""
    places, cluster = arm
    chosen = [(scores.images[place], matched[place]) for place in places.tolist()]
    empty = np.zeros(0, np.int64)
    outcome = np.concatenate([empty, *(matching.outcome for _, matching in chosen)])
    fate = np.concatenate([empty, *(matching.fate for _, matching in chosen)])
    label = np.concatenate([empty, *(image.objects.label for image, _ in chosen)])
    size = np.concatenate([empty, *(sizes(image.objects.area) for image, _ in chosen)])
    counts = outcome != IGNORED
    found, mislocated, misclassified, missed, _ = (int((outcome == number).sum()) for number in range(IGNORED + 1))

    def of(these: NDArray[np.bool_]) -> FoundObjects:
        return FoundObjects(objects=int((these & counts).sum()), found=int((these & (outcome == FOUND)).sum()))

    hallucinating = np.array([(matching.fate == HALLUCINATION).any() for _, matching in chosen], bool)
    return DetectionScores(
        images=len(set(places.tolist())),
        objects=int(counts.sum()),
        found=found,
        mislocated=mislocated,
        misclassified=misclassified,
        missed=missed,
        hallucinations=int((fate == HALLUCINATION).sum()),
        duplicates=int((fate == DUPLICATE).sum()),
        hallucinating=clustered_rate(hallucinating, cluster),
        classes=[of(label == number) for number in range(len(scores.classes))],
        sizes={name: of(size == number) for number, name in enumerate(SIZES)},
        precision=precision,
    )


def at_confidence(rows: KindRows, confidence: float, reported: ModelResults) -> tuple[Scores, Fields]:
    """The scores if boxes below this confidence do not count."""
    scores = rows.scores
    assert isinstance(scores, BoxScores)
    changed = _rescored(scores, limits_of(scores.rules, scores.classes, confidence))
    metrics = detection_metrics(changed, derive_seed("confidence", 0), confidence, reported.detection)
    return changed, {"detection": metrics}


def nearby(rows: KindRows) -> dict[str, Scores]:
    """The scores if boxes count from a score 0.1 lower on, or 0.1 higher, from 0 to 1."""
    scores = rows.scores
    assert isinstance(scores, BoxScores)
    limits = limits_of(scores.rules, scores.classes)
    moved: dict[str, Scores] = {}
    for shift in (-NEARBY, NEARBY):
        name = f"{abs(shift):g} {'lower' if shift < 0 else 'higher'}"
        name = name if scores.rules.scores else f"{min(max(scores.rules.score + shift, 0.0), 1.0):g}"
        moved[name] = _rescored(scores, limits._replace(score=(limits.score + shift).clip(0.0, 1.0)))
    return moved


def _rescored(scores: BoxScores, limits: CountingLimits) -> BoxScores:
    recalls = [_recall_by_label(image, limits.match(image), scores.classes) for image in scores.images]

    def of_rows(column: int) -> Floats:
        places = scores.pairs[scores.row_pair, column].tolist()
        return np.array([recalls[place][label] for place, label in zip(places, scores.row_label, strict=True)], float)

    scored = scores.pairs[: len(scores.ordinal), 0].tolist()
    return replace(
        scores,
        original=np.array([recalls[place][ALL_CLASSES] for place in scored], float),
        null=of_rows(1),
        counterfactual=of_rows(2),
        sham=None if scores.sham is None else of_rows(3),
    )


def _recall_by_label(image: BoxedPair, matching: MatchedObjects, classes: Sequence[str]) -> dict[str, float]:
    outcomes = zip(image.objects.label.tolist(), matching.outcome.tolist(), strict=True)
    return recalls((classes[label], outcome == FOUND) for label, outcome in outcomes if outcome != IGNORED)


def figures(rows: KindRows, of: Measurement) -> Fields:
    """The figures of a detector, and by class the score that would find its originals best."""
    assert isinstance(rows.scores, BoxScores)
    metrics = detection_metrics(rows.scores, of.seed)
    best = _best_scores(rows.scores, of.seed) if of.labelled else {}
    return {"detection": metrics.model_copy(update={"best_scores": best})}


def _best_scores(scores: BoxScores, seed: int) -> dict[str, float]:
    """By class the score from which on its boxes have the highest F1 on the originals."""
    sample = np.random.default_rng(seed).permutation(len(scores.every))[:MOST_COMPARED]
    images = [scores.images[place] for place in scores.every[sample].tolist()]
    return _best_by_class(images, scores.classes, scores.rules.iou)


def chosen_scores(rows: Sequence[PredictionRow], classes: Sequence[str], *, rules: BoxSpec) -> dict[str, float]:
    """The same for predictions on originals; a class of which nothing is found at any score is not among them."""
    numbers = {name: place for place, name in enumerate(classes)}
    truths = ((true_objects(row, numbers), all_boxes(row)) for row in rows)
    return _best_by_class([BoxedPair(objects, boxes) for objects, boxes in truths if objects], classes, rules.iou)


def _best_by_class(images: Sequence[BoxedPair], classes: Sequence[str], iou: float) -> dict[str, float]:
    best = best_scores(images, len(classes), iou)
    return {name: score for name, score in zip(classes, best, strict=True) if score is not None}
