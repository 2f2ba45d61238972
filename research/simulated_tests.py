"""Do weaknesses and suspected weaknesses hold, and how many are found? `python -m research.simulated_tests`.

Tables of 28 or 42 cells, each a class with a value, `CELLS_OF_CLASS` of them on the same source images and null arms. A
model is right on an arm and wrong on an edit by its own luck, or by an image's difficulty (`correlation`: of the normal
variables behind both). A cell's `loss` is how much less often the model is right on edits. Rules compared:

* `exact`: the exact test of matched pairs, one-sided; Benjamini-Hochberg at 5 % gives the weaknesses (more than 5
  points are lost), and among the other cells the suspected ones (something is lost).
* `discarding`: the same, but cells with p > 1/2 leave the family and the other p-values are doubled (as ADDIS does,
  Tian & Ramdas 2019, arXiv 1905.11465).
* `betting`: the two-sided rule before, on `BETTING_TABLES` tables, for the yields only.

False discoveries: the mean share of false ones among all of a tier, with the upper limit of a one-sided 95 % interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, norm

from gateway.analysis.certainty import p_beyond
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE
from gateway.analysis.matched_pairs import PairCounts, p_value
from shared.seeds import derive_seed

CELLS_OF_CLASS = 7
TABLES = 2_000
BETTING_TABLES = 60
DISCARD_ABOVE = 0.5
ONE_SIDED_95 = 1.645
LOSSES = {
    "all 5": (0.05,),
    "all 4.5": (0.045,),
    "half 40, half 5": (0.40, 0.05),
    "half 40, half 4.5": (0.40, 0.045),
    "none": (0.0,),
    "half 40, half 0": (0.40, 0.0),
    "third 40, third 4.5, third 0": (0.40, 0.045, 0.0),
}
PLANTED = (0.40, 0.30, 0.20, 0.15, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Tables:
    """Source images of each cell, how often the model is right on arms, losses of the cells, and the correlation."""

    images: int
    accuracy: float
    losses: tuple[float, ...]
    correlation: float
    cells: int = 28

    @property
    def loss(self) -> Floats:
        """By cell, in turn."""
        return np.resize(np.array(self.losses), self.cells)


def counts(tables: Tables, number: int, random: np.random.Generator) -> tuple[Integers, Integers]:
    """How many images each cell loses and gains (tables × cells)."""
    classes = tables.cells // CELLS_OF_CLASS
    shape = (number, classes, 1, tables.images)
    own = (number, classes, CELLS_OF_CLASS, tables.images)
    difficulty = random.standard_normal(shape, np.float32)
    shared, rest = np.sqrt(tables.correlation), np.sqrt(1 - tables.correlation)
    arm = shared * difficulty + rest * random.standard_normal(shape, np.float32) < norm.ppf(tables.accuracy)
    limit = norm.ppf(np.maximum(tables.accuracy - tables.loss, 1e-9)).reshape(1, -1, CELLS_OF_CLASS, 1)
    edit = shared * difficulty + rest * random.standard_normal(own, np.float32) < limit.astype(np.float32)
    lost, gained = (arm & ~edit).sum(-1), (~arm & edit).sum(-1)
    return lost.reshape(number, -1), gained.reshape(number, -1)


def p_values(lost: Integers, gained: Integers, images: int, margin: float) -> Floats:
    """The exact p-value of each cell."""
    codes, index = np.unique(lost * (images + 1) + gained, return_inverse=True)
    values = [
        p_value(PairCounts(images, int(code) // (images + 1), int(code) % (images + 1)), margin) for code in codes
    ]
    return np.array(values)[index].reshape(lost.shape)


def rejected(p: Floats, family: NDArray[np.bool_], discard: bool) -> NDArray[np.bool_]:
    """Of each table (row), the cells of the `family` that Benjamini-Hochberg rejects at 5 %."""
    if discard:
        family, p = family & (p <= DISCARD_ABOVE), p / DISCARD_ABOVE
    ordered = np.sort(np.where(family, p, np.inf), axis=1)
    places = np.arange(1, p.shape[1] + 1)
    holds = ordered <= FALSE_DISCOVERY_RATE * places / np.maximum(1, family.sum(axis=1, keepdims=True))
    last = np.where(holds, places, 0).max(axis=1)
    limit = np.where(last > 0, ordered[np.arange(len(p)), np.maximum(last - 1, 0)], -1.0)
    found: NDArray[np.bool_] = family & (p <= limit[:, np.newaxis])
    return found


def tiers(lost: Integers, gained: Integers, images: int, discard: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The weaknesses and the suspected weaknesses."""
    weak = rejected(p_values(lost, gained, images, BEYOND), np.ones(lost.shape, bool), discard)
    return weak, rejected(p_values(lost, gained, images, 0.0), ~weak, discard)


def false_share(found: NDArray[np.bool_], true: NDArray[np.bool_]) -> dict[str, float]:
    """The false discovery rate of tables, with its upper limit."""
    shares = (found & ~true).sum(axis=1) / np.maximum(1, found.sum(axis=1))
    limit = max(3 / len(shares), shares.mean() + ONE_SIDED_95 * shares.std(ddof=1) / np.sqrt(len(shares)))
    return {"rate": round(float(shares.mean()), 4), "limit": round(float(limit), 4)}


def betting_weaknesses(lost: Integers, gained: Integers, images: int) -> NDArray[np.bool_]:
    """The weaknesses of the two-sided rule of before: bets, or the bootstrap, on the cell's differences."""
    found = []
    for row_lost, row_gained in zip(lost, gained, strict=True):
        cells = [np.repeat([-1.0, 1.0, 0.0], [a, b, images - a - b]) for a, b in zip(row_lost, row_gained, strict=True)]
        p = np.array([p_beyond(values, BEYOND, seed) for seed, values in enumerate(cells)])
        found.append((false_discovery_control(p) <= FALSE_DISCOVERY_RATE) & (row_lost > row_gained))
    return np.array(found)


def false_discoveries(number: int) -> Iterator[dict[str, Any]]:
    """Every setting of true hypotheses."""
    grid = product(LOSSES.items(), (12, 20, 30, 45, 60, 80), (0.6, 0.8, 0.95), (0.0, 0.8), (28, 42))
    for (name, losses), images, accuracy, correlation, cells in grid:
        tables = Tables(images, accuracy, losses, correlation, cells)
        random = np.random.default_rng(derive_seed("tests", name, images, str(accuracy), str(correlation), cells))
        lost, gained = counts(tables, number, random)
        row: dict[str, Any] = {"losses": name, "images": images, "accuracy": accuracy, "correlation": correlation}
        row["cells"] = cells
        for rule, discard in (("exact", False), ("discarding", True)):
            weak, suspected = tiers(lost, gained, images, discard)
            more, some = np.broadcast_to(tables.loss > BEYOND, weak.shape), np.broadcast_to(tables.loss > 0, weak.shape)
            row[rule] = {"weaknesses": false_share(weak, more), "suspected": false_share(suspected, some)}
        yield row


def largest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each setting of losses and images, the largest rates over accuracies, correlations and sizes of tables."""
    found = []
    for name, images in dict.fromkeys((row["losses"], row["images"]) for row in rows):
        alike = [row for row in rows if (row["losses"], row["images"]) == (name, images)]
        worst: dict[str, Any] = {"losses": name, "images": images}
        for rule, tier in product(("exact", "discarding"), ("weaknesses", "suspected")):
            worst[f"{rule} {tier}"] = max((row[rule][tier] for row in alike), key=lambda rate: rate["limit"])
        found.append(worst)
    return found


def yields(number: int, betting: int) -> Iterator[dict[str, Any]]:
    """The share of the planted losses that each rule finds."""
    for images, accuracy in product((30, 60, 75, 150, 300), (0.95, 0.8)):
        tables = Tables(images, accuracy, PLANTED, 0.0)
        random = np.random.default_rng(derive_seed("yields", images, str(accuracy)))
        lost, gained = counts(tables, number, random)
        row: dict[str, Any] = {"images": images, "accuracy": accuracy}
        for rule, discard in (("exact", False), ("discarding", True)):
            weak, suspected = tiers(lost, gained, images, discard)
            row[rule] = _by_loss(weak, tables)
            row[f"{rule}, either tier"] = _by_loss(weak | suspected, tables)
        row["betting"] = _by_loss(betting_weaknesses(lost[:betting], gained[:betting], images), tables)
        yield row


def _by_loss(found: NDArray[np.bool_], tables: Tables) -> dict[str, float]:
    losses = sorted({loss for loss in tables.losses if loss > 0}, reverse=True)
    return {f"{loss:.0%}": round(float(found[:, tables.loss == loss].mean()), 3) for loss in losses}


def main() -> None:
    """Print the figures, or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=TABLES, help="of each setting")
    parser.add_argument("--betting", type=int, default=BETTING_TABLES, help="tables for the rule before, which is slow")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    rows = [*false_discoveries(arguments.tables)]
    for rule, tier in product(("exact", "discarding"), ("weaknesses", "suspected")):
        worst = max(rows, key=lambda row: row[rule][tier]["limit"])
        print(rule, tier, "largest rate", worst[rule][tier], {name: worst[name] for name in worst if name not in rule})
    found = [*yields(arguments.tables, arguments.betting)]
    for row in found:
        print(json.dumps(row))
    if arguments.json:
        figures = {"tables": arguments.tables, "false discoveries": largest(rows), "yields": found}
        arguments.json.write_text(json.dumps(figures, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
