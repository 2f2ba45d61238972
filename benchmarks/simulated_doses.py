"""Which models are called growing and returning? `python -m benchmarks.simulated_doses`.

Each model is wrong on 5 % of all images, null arms included. Its loss by dose (0.5, 1, 1.5) and with the edit undone:

none        no loss at any dose
value       0.25, 0.5, 0.75 as the value shows; undone 0.05, because a tenth of the undone edits still show it
saturated   0.6 at every dose: half a dose shows the value; undone 0.05
artefact    0.5 at every dose and undone: any change of words leaves marks, and undoing is one
strong marks  0.25, 0.5, 0.75 as guidance grows; undone 0.5
both        0.4, 0.5, 0.6: marks cost 0.3 at every dose and undone, the value the rest

Whether an image is susceptible is drawn once for all its renderings. A table is a finding if its interval at full dose
lies below −5 points. Shares are of findings; for `none` of all tables.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gateway.analysis.doses import dose_trend, interval_of, return_verdict, trend_verdict
from gateway.analysis.effects import Floats
from gateway.analysis.limits import BEYOND
from shared.seeds import derive_seed

DOSES = np.array([0.5, 1.0, 1.5])
FULL = 1
ERRORS = 0.05  # of every model on every image


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """The share of images that a model loses at each dose, and with the edit undone."""

    lost: tuple[float, float, float]
    undone: float


MODELS = {
    "none": SimulatedModel((0.0, 0.0, 0.0), 0.0),
    "value": SimulatedModel((0.25, 0.5, 0.75), 0.05),
    "saturated": SimulatedModel((0.6, 0.6, 0.6), 0.05),
    "artefact": SimulatedModel((0.5, 0.5, 0.5), 0.5),
    "strong marks": SimulatedModel((0.25, 0.5, 0.75), 0.5),
    "both": SimulatedModel((0.4, 0.5, 0.6), 0.3),
}


@dataclass(frozen=True, slots=True)
class DoseTable:
    """Differences of n source images: at each dose (n × doses), regained and remaining with the edit undone (n)."""

    effects: Floats
    regained: Floats
    remaining: Floats


def simulate_table(model: SimulatedModel, sources: int, seed: int) -> DoseTable:
    """One random table."""
    random = np.random.default_rng(seed)
    susceptible = random.random(sources)[:, None]
    lost = np.asarray([*model.lost, model.undone])
    right = (susceptible >= lost) & (random.random((sources, len(lost))) >= ERRORS)
    nulls = random.random((sources, len(DOSES))) >= ERRORS
    originals = random.random(sources) >= ERRORS
    at_doses, undone = right[:, :-1].astype(float), right[:, -1].astype(float)
    return DoseTable(at_doses - nulls, undone - at_doses[:, FULL], undone - originals)


def verdicts(table: DoseTable, seed: int) -> tuple[bool, str, str]:
    """Whether the table is a finding, its trend, and whether it returns."""
    full = table.effects[:, FULL]
    limits = interval_of(full, seed)
    _, trend = dose_trend(table.effects, DOSES, seed)
    returned = return_verdict(interval_of(table.remaining, seed), interval_of(table.regained, seed))
    return limits is not None and limits.high < -BEYOND, trend_verdict(trend, float(full.mean())), returned


def main() -> None:
    """Print the share of each verdict by model and number of source images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200)
    tables = parser.parse_args().tables
    print("| model | images | findings | grows | shrinks | returns | in part | does not return | undecided |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, model in MODELS.items():
        for sources in (15, 30, 60):
            counts, findings = Counter[str](), 0
            for number in range(tables):
                seed = derive_seed("doses", name, sources, number)
                finding, trend, returned = verdicts(simulate_table(model, sources, seed), seed)
                findings += finding
                counts.update([trend, returned] if finding or name == "none" else [])
            n = max(1, tables if name == "none" else findings)
            words = ("grows", "shrinks", "returns", "returns in part", "does not return", "undecided")
            shares = " | ".join(f"{counts[word] / n:.0%}" for word in words)
            print(f"| {name} | {sources} | {findings / tables:.0%} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
