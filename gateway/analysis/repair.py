"""What a repair came to: every arm on the same held-out images, paired and resampled over source images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import LEVEL, RESAMPLES, clustered_rate, mean_interval
from gateway.analysis.effects import Integers
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.releases import Pairs
from gateway.analysis.wording import points
from shared.schemas.repairs import (
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
from shared.seeds import derive_seed

SETS: tuple[SetName, ...] = ("originals", "counterfactuals", "values not trained on")
ARMS: tuple[Arm, ...] = ("before", "repaired", *CONTROLS)
Right = Mapping[Arm, NDArray[np.bool_]]


def figures(order: RepairOrder, outcome: RepairOutcome) -> RepairResult:
    """All figures of a repair. The same order and outcome give the same figures, bit for bit."""
    right: dict[Arm, NDArray[np.bool_]] = {arm: np.array(outcome.judgements[arm].correct, bool) for arm in ARMS}
    names = {source: number for number, source in enumerate(sorted({one.source for one in order.judged}))}
    source = np.array([names[one.source] for one in order.judged], np.int64)
    seed = derive_seed("repair", order.repair, order.parameters.seed)
    rows = {name: np.flatnonzero([one.set == name for one in order.judged]) for name in SETS}
    sets = [_set(name, right, source, members, seed) for name, members in rows.items() if len(members)]
    won_back = _won_back(right["before"], right["repaired"], source, rows, seed)
    return RepairResult(
        sources_trained_on=len(order.originals),
        sources_held_out=len(names),
        counterfactuals_trained_on=len(order.counterfactuals),
        values_not_trained_on=order.values_not_trained_on,
        sets=sets,
        cells=_cells(order, right, source, seed),
        won_back=won_back,
        sentences=[*map(_sentence, sets), _said_of(won_back)],
        versions=outcome.versions,
    )


def paired(mine: NDArray[np.bool_], other: NDArray[np.bool_], source: Integers, seed: int) -> Paired:
    """Accuracy minus the other's, as the mean over source images; n ≥ 1 images."""
    values = Pairs(source, mine, other).differences()
    interval = mean_interval(values, LEVEL, seed) if len(values) >= LEAST_SOURCES else None
    return Paired(difference=float(values.mean()), interval=interval, sources=len(values))


def _set(name: SetName, right: Right, source: Integers, rows: Integers, seed: int) -> SetFigures:
    here = source[rows]
    best = _best_control(right, here, rows)
    return SetFigures(
        set=name,
        sources=len(np.unique(here)),
        images=len(rows),
        arms=[
            ArmFigures(
                arm=arm,
                accuracy=clustered_rate(right[arm][rows], here),
                against_before=None
                if arm == "before"
                else paired(right[arm][rows], right["before"][rows], here, derive_seed(seed, name, arm)),
            )
            for arm in ARMS
        ],
        best_control=best,
        against_best_control=paired(
            right["repaired"][rows], right[best][rows], here, derive_seed(seed, name, "best control")
        ),
    )


def _best_control(right: Right, source: Integers, rows: Integers) -> TrainedArm:
    """The first of those that are right most often, source images weighted equally."""
    nothing = np.zeros(len(rows), bool)
    return max(CONTROLS, key=lambda arm: float(Pairs(source, right[arm][rows], nothing).differences().mean()))


def _cells(order: RepairOrder, right: Right, source: Integers, seed: int) -> list[CellFigures]:
    """Of each class and value with enough source images, what won most first."""
    members: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for number, one in enumerate(order.judged):
        if one.factor is not None and one.value is not None:
            members[one.label, one.factor, one.value].append(number)
    found = []
    for (label, factor, value), numbers in sorted(members.items()):
        rows = np.array(numbers, np.int64)
        here = source[rows]
        if len(np.unique(here)) < LEAST_SOURCES:
            continue
        best = _best_control(right, here, rows)
        found.append(
            CellFigures(
                label=label,
                factor=factor,
                value=value,
                trained_on=value not in order.values_not_trained_on,
                before=clustered_rate(right["before"][rows], here),
                repaired=clustered_rate(right["repaired"][rows], here),
                best_control=clustered_rate(right[best][rows], here),
                difference=paired(
                    right["repaired"][rows], right["before"][rows], here, derive_seed(seed, label, factor, value)
                ),
            )
        )
    return sorted(found, key=lambda cell: -cell.difference.difference)


def _won_back(
    before: NDArray[np.bool_],
    repaired: NDArray[np.bool_],
    source: Integers,
    rows: Mapping[SetName, Integers],
    seed: int,
) -> WonBack | None:
    """None below 12 sources, and where the counterfactuals cost the model nothing that stands up."""
    edits = rows["counterfactuals"]
    original = dict(zip(source[rows["originals"]].tolist(), before[rows["originals"]].tolist(), strict=True))
    known = np.array([original[number] for number in source[edits].tolist()], bool)
    if len(np.unique(source[edits])) < LEAST_SOURCES:
        return None
    loss = paired(known, before[edits], source[edits], derive_seed(seed, "loss"))
    if loss.interval is None or loss.interval.low <= 0:
        return None
    lost = Pairs(source[edits], known, before[edits]).differences()
    gained = Pairs(source[edits], repaired[edits], before[edits]).differences()
    low, high = share_interval(gained, lost, derive_seed(seed, "won back"))
    return WonBack(share=float(gained.sum() / lost.sum()), low=low, high=high, loss=loss)


def share_interval(gained: NDArray[np.float64], lost: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """The 95 % interval of Σ gained / Σ lost over source images, of which something was lost; sources are resampled."""
    drawn = np.random.default_rng(seed).integers(len(lost), size=(RESAMPLES, len(lost)))
    sums = lost[drawn].sum(axis=1)
    shares = gained[drawn].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(shares, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _sentence(found: SetFigures) -> str:
    """What became of a set: "originals: 98 % right before, 98 % repaired, +0 points (…), 90 source images"."""
    arms = {arm.arm: arm for arm in found.arms}
    before, repaired = arms["before"].accuracy.value or 0, arms["repaired"]
    change = repaired.against_before
    assert change is not None
    said = f"{found.set}: {before:.1%} right before, {repaired.accuracy.value or 0:.1%} repaired, {_points(change)}"
    control = arms[found.best_control].accuracy.value or 0
    return (
        f"{said}; the best control ({found.best_control}) {control:.1%}, {_points(found.against_best_control)} "
        f"above it; {found.images} images of {found.sources} source images"
    )


def _points(change: Paired) -> str:
    said = f"{points(change.difference)} points"
    if change.interval is None:
        return f"{said} (too few source images for an interval)"
    return f"{said} (95 % interval {points(change.interval.low)} to {points(change.interval.high)})"


def _said_of(won: WonBack | None) -> str:
    if won is None:
        return (
            "The counterfactuals of held-out source images cost the model nothing that stands up, so there is no share "
            "to win back."
        )
    return (
        f"Won back: {won.share:.0%} (95 % interval {won.low:.0%} to {won.high:.0%}) of the "
        f"{points(won.loss.difference)} points that the counterfactuals cost the model; "
        f"{won.loss.sources} source images."
    )


def arm_table(found: Sequence[SetFigures]) -> list[tuple[str, str, list[str]]]:
    """Set, size, and a word per arm of `ARMS`, for tables."""
    return [
        (one.set, f"{one.images} of {one.sources}", [f"{arm.accuracy.value or 0:.1%}" for arm in one.arms])
        for one in found
    ]
