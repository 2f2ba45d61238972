"""Is the difference in pooled mIoU right, and does its interval cover? `python -m research.simulated_overlaps`.

Three classes are in every image, one in few, one in none: it is only predicted, most often on counterfactuals. The IoU
of a class varies with how easy its image is. The change loses most of a class in some counterfactuals. Images that are
easy have four accepted edits, others one, and siblings share their null arm. The truth is the difference over the
classes of the table's ground truth.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from gateway.analysis.segmentation import pooled_difference, pooled_interval, pooled_interval_obstacle
from shared.seeds import derive_seed

CLASSES = 4  # in the ground truth; the last is rare
FALSE = (0.3, 0.05)  # share of counterfactuals, and of null arms, with false pixels of another class
EDITS = 4  # of an easy image; others have one
EASY = 0.7
LOST = 0.2  # share of a class's hits that remain where the change loses it
POPULATION = 300_000


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Independent images, the share with the rare class, and the share of counterfactuals that lose it.

    The other classes are lost half as often.
    """

    groups: int
    rare: float
    lost: float


class OverlapRow(NamedTuple):
    """The error of a table's difference, of the one with each null arm once, and of the one over all predicted classes.

    None as interval: there is none.
    """

    error: float
    error_null_once: float
    error_predicted: float
    covered: bool | None
    width: float | None
    members: int


def overlaps_grid() -> list[Overlaps]:
    """All simulated settings."""
    return [Overlaps(*values) for values in product((12, 20, 40, 80, 160), (0.5, 0.15, 0.05), (0.0, 0.06, 0.4))]


def draw_pixels(setting: Overlaps, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The `class_pixels` (groups × 2 arms × 3 × classes), the null arm once for each edit; and the number of edits."""
    groups, size = setting.groups, (setting.groups, CLASSES)
    ease = random.beta(4, 2, groups)
    edits = np.where(ease > EASY, EDITS, 1)
    pixels = random.lognormal(6, 0.7, size)
    pixels[:, -1] *= random.random(groups) < setting.rare
    arms = np.zeros((groups, 2, 3, CLASSES + 1))
    lost = setting.lost * np.array([0.5, 0.5, 0.5, 1.0])
    for edit in range(EDITS):
        remaining = np.where(random.random(size) < lost, LOST, 1.0)
        image = _class_pixels(pixels, ease, remaining, random)
        arms[:, 0, :, :-1] += np.where(edit < edits, 1, 0)[:, None, None] * image
    arms[:, 1, :, :-1] = edits[:, None, None] * _class_pixels(pixels, ease, np.ones(size), random)
    for arm, share in enumerate(FALSE):
        arms[:, arm, 1, -1] = edits * 20 * (random.random(groups) < share)
    return arms.round().astype(np.int64), edits


def _class_pixels(
    pixels: np.ndarray, ease: np.ndarray, remaining: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    share = (ease[:, None] + random.normal(0, 0.15, pixels.shape)).clip(0.02, 0.98)
    union = pixels * (1 + random.uniform(0, 0.4, pixels.shape))
    return np.stack([pixels * share * remaining, union, pixels], axis=1)


def true_differences(setting: Overlaps) -> np.ndarray:
    """Per class of the ground truth the difference in IoU of the pooled pixels of a large population."""
    large = Overlaps(POPULATION, 0.5, setting.lost)
    total, _ = draw_pixels(large, np.random.default_rng(derive_seed("overlaps", str(setting.lost))))
    hits, union, _ = total.sum(axis=0)[..., :CLASSES].transpose(1, 0, 2)
    return np.asarray(hits[0] / union[0] - hits[1] / union[1])


def simulate_overlaps(setting: Overlaps, truths: np.ndarray, seed: int) -> OverlapRow:
    """The difference of one random table, against the truth by class."""
    pixels, edits = draw_pixels(setting, np.random.default_rng(seed))
    members = pixels[:, 1, 2, :CLASSES].astype(bool).sum(axis=0)
    truth = float(truths[members > 0].mean())
    once = pixels.copy()
    once[:, 1] //= edits[:, None, None]
    predicted = pixels.copy()
    predicted[:, :, 2] = pixels[:, :, 1]
    interval = None if pooled_interval_obstacle(pixels) else pooled_interval(pixels)
    return OverlapRow(
        (pooled_difference(pixels) or 0.0) - truth,
        (pooled_difference(once) or 0.0) - truth,
        (pooled_difference(predicted) or 0.0) - truth,
        None if interval is None else interval.low <= truth <= interval.high,
        None if interval is None else interval.high - interval.low,
        int(members[-1]),
    )


def simulate_tables(setting: Overlaps, tables: int) -> list[OverlapRow]:
    """Random tables of one setting."""
    truths = true_differences(setting)
    return [simulate_overlaps(setting, truths, derive_seed("overlaps", repr(setting), n)) for n in range(tables)]


def print_coverage(name: str, rows: list[OverlapRow]) -> None:
    """One line: errors and coverage of the tables."""
    intervals = [row for row in rows if row.covered is not None]
    errors = " ".join(f"{100 * float(np.mean([row[place] for row in rows])):+5.1f}" for place in (0, 1, 2))
    coverage = width = "none"
    if intervals:
        coverage = f"{float(np.mean([bool(row.covered) for row in intervals])):.1%}"
        width = f"{100 * float(np.median([row.width or 0.0 for row in intervals])):.0f} points"
    print(f"{name}: error {errors}; {len(intervals)} of {len(rows)} have an interval, {coverage}, {width}", flush=True)


def main() -> None:
    """Print a line for each setting, and for each number of images with the rare class."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=400)
    tables = parser.parse_args().tables
    simulated = {setting: simulate_tables(setting, tables) for setting in overlaps_grid()}
    for setting, rows in simulated.items():
        print_coverage(str(setting), rows)
    for groups in sorted({setting.groups for setting in simulated}):
        print_coverage(f"{groups} images", [row for s, rows in simulated.items() if s.groups == groups for row in rows])
    every = [row for rows in simulated.values() for row in rows]
    for least, most in ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 11), (12, 160)):
        print_coverage(f"rare class in {least} to {most}", [row for row in every if least <= row.members <= most])


if __name__ == "__main__":
    main()
