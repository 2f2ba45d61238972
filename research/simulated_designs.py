"""Power and false findings of a job's designs at equal renderings, on tables with known truth.

`python -m research.simulated_designs`: jobs of 4 classes and 7 values with a pool of source images of each class. One
place (a class and a value) has a true drop; all others have none, or one of 4 or 5 points. *Even*: every place gets
equally many source images, as in a free or balanced design. *Adaptive*: `gateway.analysis.allocation`. Both render
the same number of edits. Without drop every finding is invented.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.stats import false_discovery_control

from gateway.analysis.allocation import LARGEST_SHARE, LATER_ROUNDS, SCREENING_SHARE, Suspicion, allocate
from gateway.analysis.betting import anytime_p, expected_left
from gateway.analysis.certainty import p_beyond
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE, LEAST_SOURCES
from shared.seeds import derive_seed

RESULTS = Path(__file__).parent / "results" / "designs.json"
CLASSES, VALUES = 4, 7
PLACES = tuple(f"{label}/{value}" for label in range(CLASSES) for value in range(VALUES))
ACCURACY = 0.95
COUNTED = 0.71  # share of edits whose pairs count: the yardstick's (850 of 1,200)


class World(Protocol):
    """What a job's designs spend `edits` renderings (without arms) on: `pool` source images of each class."""

    @property
    def pool(self) -> int: ...
    @property
    def edits(self) -> int: ...
    @property
    def places(self) -> Sequence[str]: ...

    def draw(self, place: str, edits: int, random: np.random.Generator) -> Floats:
        """Differences (−1 … 1) of so many edits of a place; NaN where a pair does not count."""
        ...


@dataclass(frozen=True, slots=True)
class DesignSetting:
    """`pool`: source images of each class. `edits`: renderings without arms. `drop` is of `planted` places (0 … 1);
    `elsewhere` of all others."""

    pool: int
    edits: int
    drop: float
    planted: int = 1
    elsewhere: float = 0.0

    @property
    def places(self) -> Sequence[str]:
        return PLACES

    def drop_at(self, place: str) -> float:
        return self.drop if PLACES.index(place) < self.planted else self.elsewhere

    def draw(self, place: str, edits: int, random: np.random.Generator) -> Floats:
        """Differences of pairs with independent errors on both arms."""
        drop = self.drop_at(place)
        worse, better = ACCURACY * (1 - ACCURACY + drop), (1 - ACCURACY) * (ACCURACY - drop)
        uniform, counted = random.random(edits), random.random(edits) < COUNTED
        return np.where(counted, np.where(uniform < worse, -1.0, np.where(uniform > 1 - better, 1.0, 0.0)), np.nan)


@dataclass(slots=True)
class Sample:
    """The difference of each edit of a place, in the order of its images; NaN if its pair does not count.

    `p_value` is that of the place's test in an adaptive job.
    """

    edits: list[float] = field(default_factory=list)
    p_value: float = 1.0

    @property
    def ranks(self) -> Integers:
        """The places in that order of the pairs that count."""
        return np.flatnonzero(~np.isnan(self.edits))

    @property
    def pairs(self) -> Floats:
        """The differences of the pairs that count."""
        return np.array(self.edits)[self.ranks]


@dataclass(frozen=True, slots=True)
class DesignRow:
    """The share of planted places found, and of jobs with an invented finding, in `jobs` simulated jobs."""

    setting: DesignSetting
    design: str
    jobs: int
    recall: float
    invented: float
    edits: float


def rejected_places(p_values: Mapping[str, float]) -> set[str]:
    """The places whose test Benjamini-Hochberg rejects."""
    if not p_values:
        return set()
    q_values = false_discovery_control(list(p_values.values()))
    return {place for place, q in zip(p_values, q_values, strict=True) if q <= FALSE_DISCOVERY_RATE}


def even_job(world: World, seed: int) -> tuple[set[str], int]:
    """The findings of a job that gives every place equally many images, and its edits."""
    edits_per_place = min(world.pool, world.edits // len(world.places))
    return fixed_job(world, dict.fromkeys(world.places, edits_per_place), seed)


def fixed_job(world: World, edits: Mapping[str, int], seed: int) -> tuple[set[str], int]:
    """The findings of a job that makes so many edits of each place, and their number."""
    random = np.random.default_rng(seed)
    samples = {place: Sample(world.draw(place, count, random).tolist()) for place, count in edits.items()}
    tested = {place: sample.pairs for place, sample in samples.items() if len(sample.pairs) >= LEAST_SOURCES}
    p_values = {place: p_beyond(pairs, BEYOND, seed) for place, pairs in tested.items()}
    return {place for place in rejected_places(p_values) if tested[place].mean() < 0}, sum(edits.values())


def adaptive_job(world: World, seed: int) -> tuple[set[str], int]:
    """The findings of an adaptive job, and its edits."""
    random = np.random.default_rng(seed)
    samples = {place: Sample() for place in world.places}
    planned = min(world.pool, int(LARGEST_SHARE * world.edits))
    edits_per_place = min(world.pool, math.ceil(SCREENING_SHARE * world.edits) // len(world.places))
    shares = {place: list(range(edits_per_place)) for place in world.places}
    for rounds_left in range(LATER_ROUNDS, -1, -1):
        for place, images in shares.items():
            samples[place].edits += world.draw(place, len(images), random).tolist()
            samples[place].p_value = p_value_of(samples[place], planned)
        rejected = rejected_places({place: sample.p_value for place, sample in samples.items() if len(sample.pairs)})
        if rounds_left:
            left = world.edits - sum(len(sample.edits) for sample in samples.values())
            suspicions = {place: suspicion_of(sample, planned, place in rejected) for place, sample in samples.items()}
            shares = allocate(suspicions, left // rounds_left, rounds_left, cost=lambda values: values)
    findings = {place for place in rejected if samples[place].pairs.mean() < 0}
    return findings, sum(len(sample.edits) for sample in samples.values())


def suspicion_of(sample: Sample, planned: int, rejected: bool) -> Suspicion:
    pairs = sample.pairs
    return Suspicion(
        -float(pairs.mean()) if len(pairs) else 0.0, len(pairs), range(len(sample.edits), planned), rejected
    )


def p_value_of(sample: Sample, planned: int) -> float:
    """As a report computes it: 1 with under 12 images, which stay in the family."""
    if len(sample.pairs) < LEAST_SOURCES:
        return 1.0
    return anytime_p(sample.pairs, BEYOND, expected_left(sample.ranks, planned))


def measure(setting: DesignSetting, jobs: int) -> list[DesignRow]:
    """Both designs in one setting."""
    rows = []
    planted = {place for place in PLACES if setting.drop_at(place) > BEYOND}
    for name, job in (("even", even_job), ("adaptive", adaptive_job)):
        results = [job(setting, derive_seed("designs", name, number)) for number in range(jobs)]
        recall = np.mean([len(result & planted) / max(1, len(planted)) for result, _ in results])
        invented = np.mean([bool(result - planted) for result, _ in results])
        edits = np.mean([count for _, count in results])
        rows.append(DesignRow(setting, name, jobs, float(recall), float(invented), float(edits)))
    return rows


def settings() -> Sequence[DesignSetting]:
    """The yardstick's small size in renderings, with a pool as large as needed, and its full size."""
    return [
        *(DesignSetting(300, 1_200, drop) for drop in (0.0, 0.15, 0.3, 0.6)),
        *(DesignSetting(300, 1_200, 0.3, planted) for planted in (3, 6)),
        DesignSetting(60, 1_200, 0.3),
        DesignSetting(300, 2_400, 0.15),
        DesignSetting(300, 6_000, 0.15),
        DesignSetting(300, 1_200, 0.0, elsewhere=0.04),
        DesignSetting(300, 1_200, BEYOND, elsewhere=BEYOND),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="simulated jobs of every setting and design")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    command = f"python -m research.simulated_designs --jobs {arguments.jobs}"
    rows: list[DesignRow] = []
    for setting in settings():  # the file is written after every setting, so that a long run can be interrupted
        for row in measure(setting, arguments.jobs):
            rows.append(row)
            print(
                f"{setting}  {row.design:<8} recall {row.recall:.2f}  jobs with an invented finding {row.invented:.3f}"
            )
        record = {"command": command, "rows": [asdict(row) for row in rows]}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
