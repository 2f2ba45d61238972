"""The results of a repair: all arms on the same held-out images, compared in pairs, resampled over source images."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.releases import Pairs
from gateway.analysis.segmentation import scores
from gateway.kinds import KINDS, TaskKind
from shared.media.label_maps import unpack_counts
from shared.schemas.effects import MeanOverlap, Metric, Rate
from shared.schemas.metrics import SegmentationScores
from shared.schemas.repairs import (
    ARMS,
    CONTROLS,
    Arm,
    ArmFigures,
    CellFigures,
    Paired,
    RepairOrder,
    RepairOutcome,
    RepairResult,
    SetFigures,
    SetName,
    TrainedArm,
    WonBack,
)
from shared.schemas.scores import whole
from shared.seeds import derive_seed
from shared.words.wording import SCORE_WORDS, points

SETS: tuple[SetName, ...] = ("originals", "counterfactuals", "values not trained on")


@dataclass(frozen=True, slots=True)
class _Measured:
    """The scores of every arm on the judged images (n): 1 if it is right, or the IoU of each class of the mask.

    `by_class` holds each image's scores by class, and their mean if there are several classes. `whole` (n) is the score
    of the image. `counts` is the confusion of its pixels (empty for classifiers). `source` (n) numbers source images,
    `group` (n) the groups that they belong to, or they themselves where they belong to none.
    """

    kind: TaskKind[Any, Any]
    classes: Sequence[str]
    source: Integers
    group: Integers
    by_class: Mapping[Arm, Sequence[Mapping[str, float]]]
    whole: Mapping[Arm, Floats]
    counts: Mapping[Arm, Sequence[Integers]]

    def scores(self, arm: Arm, rows: Integers, label: str | None) -> Floats:
        """The scores of the images at `rows`: of the whole image (None), or of a class of its ground truth."""
        if label is None:
            return np.asarray(self.whole[arm][rows])
        return np.array([self.by_class[arm][row][label] for row in rows])

    def level(self, arm: Arm, rows: Integers, label: str | None, seed: int) -> Rate | MeanOverlap:
        """The arm's mean score on these images, with its interval."""
        return self.kind.level(self.scores(arm, rows, label), self.group[rows], seed)

    def difference(self, arm: Arm, baseline: Arm, rows: Integers, label: str | None, seed: int) -> Paired:
        """An arm's score minus another's on these images."""
        mine, other = self.scores(arm, rows, label), self.scores(baseline, rows, label)
        return pair(mine, other, self.source[rows], seed, self.group[rows])

    def best_control(self, rows: Integers, label: str | None) -> TrainedArm:
        """The control with the best score on these images, source images (or groups) weighted equally."""
        zeros = np.zeros(len(rows))
        source, group = self.source[rows], self.group[rows]
        return max(
            CONTROLS,
            key=lambda arm: float(Pairs(source, self.scores(arm, rows, label), zeros, group).differences().mean()),
        )


def figures(order: RepairOrder, outcome: RepairOutcome, reserve: str = "") -> RepairResult:
    """All figures of a repair. Equal orders and outcomes give bit-identical figures, under any id.

    `reserve`: why not to rely on them, the first sentence; "" for nothing.
    """
    measured = _measure(order, outcome)
    seed = derive_seed("repair", order.parameters.seed)
    rows = {name: np.flatnonzero([example.set == name for example in order.judged]) for name in SETS}
    sets = [_set_figures(name, measured, members, seed) for name, members in rows.items() if len(members)]
    won_back = _recovered_share(measured, rows, seed)
    return RepairResult(
        metric=measured.kind.metric,
        classes=list(order.classes),
        sources_trained_on=len(order.originals),
        sources_held_out=len(np.unique(measured.source)),
        counterfactuals_trained_on=len(order.counterfactuals),
        values_not_trained_on=order.values_not_trained_on,
        sets=sets,
        cells=_cells(order, measured, seed),
        won_back=won_back,
        sentences=[
            *([reserve] if reserve else []),
            *(_sentence(figures_of_set, measured.kind.metric) for figures_of_set in sets),
            _recovery_sentence(won_back, len(np.unique(measured.group[rows["counterfactuals"]]))),
        ],
        versions=outcome.versions,
    )


def _measure(order: RepairOrder, outcome: RepairOutcome) -> _Measured:
    sources = [("", example.source) for example in order.judged]
    groups = [(example.group or "", "" if example.group else example.source) for example in order.judged]
    size = len(order.classes)
    by_class = {arm: outcome.judgements[arm].scores for arm in ARMS}
    return _Measured(
        kind=KINDS[order.kind],
        classes=order.classes,
        source=_numbers(sources),
        group=_numbers(groups),
        by_class=by_class,
        whole={arm: np.array([whole(scores_of_image) for scores_of_image in by_class[arm]]) for arm in ARMS},
        counts={arm: [unpack_counts(flat, size) for flat in outcome.judgements[arm].confusion] for arm in ARMS},
    )


def _numbers(names: Sequence[tuple[str, str]]) -> Integers:
    """The number of each name in the order of the distinct ones."""
    number = {name: place for place, name in enumerate(sorted(set(names)))}
    return np.array([number[name] for name in names], np.int64)


def pair(
    mine: Floats | NDArray[np.bool_],
    baseline: Floats | NDArray[np.bool_],
    source: Integers,
    seed: int,
    group: Integers | None = None,
) -> Paired:
    """The difference in accuracy (or IoU) as the mean over source images, or `group` of them; n ≥ 1 images."""
    values = Pairs(source, mine, baseline, group).differences()
    interval = mean_interval(values, LEVEL, seed) if len(values) >= LEAST_SOURCES else None
    return Paired(difference=float(values.mean()), interval=interval, sources=len(np.unique(source)))


def _set_figures(name: SetName, measured: _Measured, rows: Integers, seed: int) -> SetFigures:
    best = measured.best_control(rows, None)
    return SetFigures(
        set=name,
        sources=len(np.unique(measured.source[rows])),
        images=len(rows),
        arms=[
            ArmFigures(
                arm=arm,
                accuracy=measured.level(arm, rows, None, derive_seed(seed, name, arm, "level")),
                against_before=None
                if arm == "before"
                else measured.difference(arm, "before", rows, None, derive_seed(seed, name, arm)),
                segmentation=_pool(measured.counts[arm], rows),
                by_class=_by_class(measured, arm, rows),
            )
            for arm in ARMS
        ],
        best_control=best,
        against_best_control=measured.difference("repaired", best, rows, None, derive_seed(seed, name, "best control")),
    )


def _pool(counts: Sequence[Integers], rows: Integers) -> SegmentationScores | None:
    """Figures of all pixels of the images at `rows`; None for classifiers."""
    if not counts:
        return None
    return scores(np.sum([counts[row] for row in rows], axis=0), len(rows))


def _by_class(measured: _Measured, arm: Arm, rows: Integers) -> dict[str, Rate]:
    """The accuracy on the images of each class; empty for other kinds than classifiers."""
    if measured.kind.localised or not measured.kind.right_or_wrong:
        return {}
    members: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows.tolist():
        for label in measured.by_class[arm][row]:
            members[label].append(row)
    numbers = {label: np.array(members[label], np.int64) for label in sorted(members)}
    return {
        label: clustered_rate(measured.scores(arm, images, label) == 1, measured.group[images])
        for label, images in numbers.items()
    }


def _cells(order: RepairOrder, measured: _Measured, seed: int) -> list[CellFigures]:
    """Figures of each class and value with enough source images, the largest gain first."""
    members: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for number, example in enumerate(order.judged):
        if example.factor is not None and example.value is not None:
            for label in measured.by_class["before"][number]:
                members[label, example.factor, example.value].append(number)
    cells = []
    for (label, factor, value), numbers in sorted(members.items()):
        rows = np.array(numbers, np.int64)
        if len(np.unique(measured.group[rows])) < LEAST_SOURCES:
            continue
        best = measured.best_control(rows, label)
        cell_seed = derive_seed(seed, label, factor, value)
        cells.append(
            CellFigures(
                label=label,
                factor=factor,
                value=value,
                trained_on=value not in order.values_not_trained_on,
                before=measured.level("before", rows, label, cell_seed),
                repaired=measured.level("repaired", rows, label, cell_seed),
                best_control=measured.level(best, rows, label, cell_seed),
                difference=measured.difference("repaired", "before", rows, label, cell_seed),
            )
        )
    return sorted(cells, key=lambda cell: -cell.difference.difference)


def _recovered_share(measured: _Measured, rows: Mapping[SetName, Integers], seed: int) -> WonBack | None:
    """What the repair regains of the lost accuracy.

    None below 12 source images (or groups), or without a certain loss.
    """
    source, before, repaired = measured.source, measured.whole["before"], measured.whole["repaired"]
    edits = rows["counterfactuals"]
    group = measured.group[edits]
    original = dict(zip(source[rows["originals"]].tolist(), before[rows["originals"]].tolist(), strict=True))
    unedited = np.array([original[number] for number in source[edits].tolist()], float)
    if len(np.unique(group)) < LEAST_SOURCES:
        return None
    loss = pair(unedited, before[edits], source[edits], derive_seed(seed, "loss"), group)
    if loss.interval is None or loss.interval.low <= 0:
        return None
    if measured.kind.right_or_wrong:
        regained, newly_lost = recovery(unedited == 1, before[edits] == 1, repaired[edits] == 1, group)
        return WonBack(
            share=regained.value or 0.0,
            low=regained.low,
            high=regained.high,
            loss=loss,
            regained=regained,
            newly_lost=newly_lost,
        )
    lost = Pairs(source[edits], unedited, before[edits], group).differences()
    gained = Pairs(source[edits], repaired[edits], before[edits], group).differences()
    low, high = share_interval(gained, lost) or (None, None)
    return WonBack(share=float(gained.sum() / lost.sum()), low=low, high=high, loss=loss)


def recovery(
    unedited: NDArray[np.bool_], before: NDArray[np.bool_], repaired: NDArray[np.bool_], group: Integers
) -> tuple[Rate, Rate]:
    """How many of the lost images are regained, and how many of the right ones newly lost, with clustered intervals.

    Each of n images: whether the model was right on its original, is right on it before the repair, and after it.
    """
    lost = unedited & ~before
    return clustered_rate(repaired[lost], group[lost]), clustered_rate(~repaired[before], group[before])


def share_interval(gained: Floats, lost: Floats) -> tuple[float, float] | None:
    """Fieller's 95 % interval of Σ gained / Σ lost over n ≥ 2 independent source images.

    None if it is unbounded, since the sum of what was lost may be 0.
    """
    n = len(lost)
    quantile = float(t.ppf((1 + LEVEL) / 2, n - 1)) ** 2 / n
    covariance = np.cov(gained, lost)
    square = float(lost.mean()) ** 2 - quantile * float(covariance[1, 1])
    if square <= 0:
        return None
    mixed = float(gained.mean() * lost.mean()) - quantile * float(covariance[0, 1])
    constant = float(gained.mean()) ** 2 - quantile * float(covariance[0, 0])
    half = math.sqrt(max(0.0, mixed**2 - square * constant)) / square
    return mixed / square - half, mixed / square + half


def _sentence(figures: SetFigures, metric: Metric) -> str:
    """The results on a set: "originals: 98 % right before, 98 % repaired, +0 points (…), 90 source images"."""
    arms = {arm.arm: arm for arm in figures.arms}
    before, repaired = arms["before"].accuracy.value or 0, arms["repaired"]
    change = repaired.against_before
    assert change is not None
    now = repaired.accuracy.value or 0
    text = f"{figures.set}: {before:.1%} {SCORE_WORDS[metric].share} before, {now:.1%} repaired, {_points(change)}"
    control = arms[figures.best_control].accuracy.value or 0
    return (
        f"{text}; the best control ({figures.best_control}) {control:.1%}, {_points(figures.against_best_control)} "
        f"above it; {figures.images} images of {figures.sources} source images"
    )


def _points(change: Paired) -> str:
    text = f"{points(change.difference)} points"
    if change.interval is None:
        return f"{text} (too few source images, or groups of them, for an interval)"
    return f"{text} (95 % interval {points(change.interval.low)} to {points(change.interval.high)})"


def _recovery_sentence(won: WonBack | None, groups: int) -> str:
    """`groups`: the independent source images with counterfactuals."""
    if won is None and groups < LEAST_SOURCES:
        return (
            f"Too few images to say what is won back: {groups} held-out source images (or groups of them) have "
            f"counterfactuals, and {LEAST_SOURCES} are needed."
        )
    if won is None:
        return (
            "There is nothing to win back: the counterfactuals of held-out source images show no certain drop in "
            "accuracy."
        )
    points_lost = f"of the {points(won.loss.difference)} points that the counterfactuals cost the model"
    if won.regained is None or won.newly_lost is None:
        limits = f" (its 95 % interval has no upper bound with n = {won.loss.sources})"
        if won.low is not None and won.high is not None:
            limits = f" (95 % interval {won.low:.0%} to {won.high:.0%})"
        return f"Won back: {won.share:.0%}{limits} {points_lost}; {won.loss.sources} source images."
    lost = won.newly_lost
    newly = f" Newly lost: {_of(lost)} of those that were right." if lost.n else ""
    return (
        f"Won back: {_of(won.regained)} of the counterfactuals that were lost are regained, of "
        f"{won.regained.sources} source images.{newly}"
    )


def _of(rate: Rate) -> str:
    """ "14 of 18 (78 %; 95 % interval 54 % to 92 %)"."""
    return f"{rate.count} of {rate.n} ({rate.value or 0:.0%}; 95 % interval {rate.low:.0%} to {rate.high:.0%})"
