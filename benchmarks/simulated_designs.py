"""Power and false findings of a job's designs at equal renderings, on tables with known truth.

`python -m benchmarks.simulated_designs`: jobs of 4 classes and 7 values with a pool of source images of each class. One
place (a class and a value) has a true drop; all others have none, or one of 4 points. *Even*: every place gets equally
many source images, as in a free or balanced design. *Adaptive*: `gateway.analysis.allocation`. Both render the same
number of edits. Without drop every finding is invented.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.stats import false_discovery_control

from gateway.analysis.allocation import Share, Suspicion, allocate, is_cleared, round_budgets
from gateway.analysis.betting import anytime_p
from gateway.analysis.certainty import p_beyond
from gateway.analysis.effects import Floats
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
        """Differences (−1 … 1) of the pairs that count, of so many edits of a place."""
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
        drop, count = self.drop_at(place), int(random.binomial(edits, COUNTED))
        worse, better = ACCURACY * (1 - ACCURACY + drop), (1 - ACCURACY) * (ACCURACY - drop)
        uniform = random.random(count)
        return np.where(uniform < worse, -1.0, np.where(uniform > 1 - better, 1.0, 0.0))


@dataclass(slots=True)
class Taken:
    """The differences of a place in the order of rounds, its edits so far, and its test."""

    screened: list[float] = field(default_factory=list)
    confirmed: list[float] = field(default_factory=list)
    edits: int = 0
    given: int = 0
    horizon: int = 0


@dataclass(frozen=True, slots=True)
class DesignRow:
    """The share of planted places found, and of jobs with an invented finding, in `jobs` simulated jobs."""

    setting: DesignSetting
    design: str
    jobs: int
    recall: float
    invented: float
    edits: float


def findings(p_values: dict[str, float], means: dict[str, float]) -> set[str]:
    """The places with a drop whose test Benjamini-Hochberg rejects."""
    if not p_values:
        return set()
    q_values = false_discovery_control(list(p_values.values()))
    rejected = [place for place, q in zip(p_values, q_values, strict=True) if q <= FALSE_DISCOVERY_RATE]
    return {place for place in rejected if means[place] < 0}


def even_job(world: World, seed: int) -> tuple[set[str], int]:
    """The findings of a job that gives every place equally many images, and its edits."""
    each = min(world.pool, world.edits // len(world.places))
    return fixed_job(world, dict.fromkeys(world.places, each), seed)


def fixed_job(world: World, edits: Mapping[str, int], seed: int) -> tuple[set[str], int]:
    """The findings of a job that makes so many edits of each place, and their number."""
    random = np.random.default_rng(seed)
    taken = {place: world.draw(place, count, random) for place, count in edits.items()}
    tested = {place: pairs for place, pairs in taken.items() if len(pairs) >= LEAST_SOURCES}
    p_values = {place: p_beyond(pairs, BEYOND, seed) for place, pairs in tested.items()}
    return findings(p_values, {place: float(pairs.mean()) for place, pairs in tested.items()}), sum(edits.values())


def adaptive_job(world: World, seed: int) -> tuple[set[str], int]:
    """The findings of an adaptive job, and its edits."""
    random = np.random.default_rng(seed)
    taken = {place: Taken() for place in world.places}
    first, *rest = round_budgets(world.edits)
    each = min(world.pool, first // len(world.places))
    spend({place: Share(screening=each) for place in world.places}, taken, world, random)
    carried = world.edits - sum(rest) - sum(place.edits for place in taken.values())
    for number, edits in enumerate(rest):
        before = sum(place.edits for place in taken.values())
        decided = findings_of(taken)
        suspicions = {place: suspicion_of(taken[place], world.pool, place in decided) for place in world.places}
        spend(allocate(suspicions, edits + carried, len(rest) - number), taken, world, random)
        carried += edits - (sum(place.edits for place in taken.values()) - before)
    return findings_of(taken), sum(place.edits for place in taken.values())


def spend(shares: dict[str, Share], taken: dict[str, Taken], world: World, random: np.random.Generator) -> None:
    for place, share in shares.items():
        own = taken[place]
        own.screened += world.draw(place, share.screening, random).tolist()
        own.confirmed += world.draw(place, share.confirming, random).tolist()
        own.edits += share.screening + share.confirming
        own.given += share.confirming
        own.horizon = share.horizon or own.horizon


def suspicion_of(taken: Taken, pool: int, decided: bool) -> Suspicion:
    pairs = [*taken.screened, *taken.confirmed]
    drop = -float(np.mean(pairs)) if pairs else 0.0
    yield_ = len(pairs) / taken.edits if taken.edits else 1.0
    suspicion = Suspicion(drop, len(pairs), pool - taken.edits, yield_, taken.horizon, taken.given)
    return replace(suspicion, decided=decided or is_cleared(suspicion, len(taken.confirmed)))


def findings_of(taken: dict[str, Taken]) -> set[str]:
    tested = {place: np.array(own.confirmed) for place, own in taken.items() if len(own.confirmed) >= LEAST_SOURCES}
    p_values = {place: anytime_p(pairs, BEYOND, taken[place].horizon) for place, pairs in tested.items()}
    return findings(p_values, {place: float(pairs.mean()) for place, pairs in tested.items()})


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
        DesignSetting(300, 1_200, 0.0, elsewhere=0.04),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="simulated jobs of every setting and design")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    command = f"python -m benchmarks.simulated_designs --jobs {arguments.jobs}"
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
