"""How often does a finding stand that a generator made? Tables with a known truth, before and after calibration.

A sound model is right on 95 % of valid images. In one of eight cells the generator swaps the class in half of its
renderings, and the model rightly reads the other class, so the cell looks like a weakness. The checks accept invalid
images nearly as often as valid ones, as on LANCE's natural output (`research/labels`: 22 of 29 valid and 17 of 28
invalid images). The errors of the checks come from constructed faults, which they detect well; or people review a
random sample of the table's own edits (`gateway.analysis.calibration`), without and with changed images of each finding
(`gateway.analysis.reviews`: as many as the report asks for); or these changed images alone.
Run: `python -m research.simulated_calibration --tables 200`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.calibration import JudgedSample, error_rates
from gateway.analysis.certainty import clustered_rate
from gateway.analysis.effects import Differences, Floats
from gateway.analysis.findings import Checked, assess
from gateway.analysis.reviews import OwnSample, RandomSample, Reviewed, Tally
from gateway.analysis.validity import Screened
from shared.schemas.effects import Cell, CellEffect, CheckErrors
from shared.seeds import derive_seed

FACTOR = "weather"
VALUES = tuple(f"value {number}" for number in range(8))
RATE = 0.95  # accuracy of the model on valid images
# LANCE's image checks on constructed faults (research/docs/checks.md): 57 of 71 valid, 20 of 319 invalid accepted.
CONSTRUCTED = CheckErrors(valid=71, valid_accepted=57, invalid=319, invalid_accepted=20)


@dataclass(frozen=True, slots=True)
class SimulatedChecks:
    """How often the checks accept valid and invalid images of natural output, and swapped ones if differently."""

    valid: float
    invalid: float
    swapped: float | None = None


NATURAL = SimulatedChecks(22 / 29, 17 / 28)
SHARP = SimulatedChecks(0.85, 0.05)
BLIND_TO_SWAPS = SimulatedChecks(0.85, 0.05, swapped=0.85)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`swapped`: share of renderings of the first cell that show another class; `elsewhere`: share of the other cells'
    that lack their edit, on which the model does as on valid ones. `drop`: true loss of the model in the first cell.
    """

    name: str
    checks: SimulatedChecks
    sources: int = 80
    swapped: float = 0.5
    elsewhere: float = 0.1
    drop: float = 0.0


SCENARIOS = (
    Scenario("sound model, checks as on LANCE's output", NATURAL),
    Scenario("sound model, checks as on LANCE's output", NATURAL, sources=300),
    Scenario("sound model, half of the other cells invalid, too", NATURAL, elsewhere=0.5),
    Scenario("sound model, sharp checks", SHARP),
    Scenario("sound model, checks sharp but blind to swaps", BLIND_TO_SWAPS),
    Scenario("sound model, checks sharp but blind to swaps", BLIND_TO_SWAPS, sources=300),
    Scenario("model loses 60 points, no swaps, checks as on LANCE's output", NATURAL, swapped=0.0, drop=0.6),
    Scenario("model loses 60 points, no swaps, sharp checks", SHARP, swapped=0.0, drop=0.6),
    Scenario("model loses 60 points, no swaps, sharp checks", SHARP, sources=300, swapped=0.0, drop=0.6),
    Scenario("model loses 5 points, 30 % swapped, checks as on LANCE's output", NATURAL, swapped=0.3, drop=0.05),
    Scenario("model loses 5 points, 30 % swapped, checks as on LANCE's output", NATURAL, 300, swapped=0.3, drop=0.05),
    Scenario("model loses 40 points, a tenth swapped, checks as on LANCE's output", NATURAL, swapped=0.1, drop=0.4),
)


@dataclass(frozen=True, slots=True)
class CalibrationTable:
    """One job: an edit of every source image in every cell (sources × cells), and the model on null arms."""

    valid: NDArray[np.bool_]
    accepted: NDArray[np.bool_]
    right: NDArray[np.bool_]
    null: NDArray[np.bool_]

    def cells(self) -> dict[Cell, Differences]:
        """Differences of the accepted edits of each cell."""
        return {
            cell_of(value): differences_of(self.right[chosen, place].astype(float) - self.null[chosen])
            for place, value in enumerate(VALUES)
            if (chosen := self.accepted[:, place]).any()
        }

    def screened(self) -> dict[Cell, Screened]:
        """The verdicts on all rendered edits of each cell."""
        sources = np.arange(len(self.null))
        return {cell_of(value): Screened(sources, self.accepted[:, place]) for place, value in enumerate(VALUES)}

    def reviewed(self, n: int, random: np.random.Generator) -> CheckErrors | None:
        """The errors of the checks after people judged n edits, sampled at random; None if these are too few."""
        sampled = random.permutation(self.valid.size)[:n]
        source = sampled // len(VALUES)
        sample = JudgedSample(self.valid.ravel()[sampled], self.accepted.ravel()[sampled], source, [(FACTOR,)] * n)
        return error_rates(sample)[0].errors

    def own_reviews(self, effects: Sequence[CellEffect], random: np.random.Generator) -> Reviewed:
        """Reviews of as many changed images of each finding as its report asks for."""
        lost = self.accepted & self.null[:, np.newaxis] & ~self.right
        reviewed, own = np.zeros(self.valid.size, bool), {}
        for effect in effects:
            cell, place = effect.cell, VALUES.index(effect.cell.value)
            changed = np.flatnonzero(lost[:, place]) * len(VALUES) + place
            first = random.permutation(changed)[: effect.reviews_needed]
            reviewed[first] = True
            own[cell] = OwnSample(RandomSample(self.valid.ravel()[first], first // len(VALUES)), len(changed))
        flipped = (self.right != self.null[:, np.newaxis]).ravel()
        tallies = {cell_of(value): self._tallies(place, reviewed, flipped) for place, value in enumerate(VALUES)}
        return Reviewed({}, tallies, (Tally(), Tally()), own=own)

    def _tallies(self, place: int, reviewed: NDArray[np.bool_], flipped: NDArray[np.bool_]) -> tuple[Tally, Tally]:
        """The accepted edits of a cell that did not flip the model, and those that did."""
        tallies = Tally(), Tally()
        for row in np.flatnonzero(self.accepted[:, place]) * len(VALUES) + place:
            tallies[int(flipped[row])].add(bool(self.valid.ravel()[row]) if reviewed[row] else None)
        return tallies


def draw(scenario: Scenario, random: np.random.Generator) -> CalibrationTable:
    """A random table of a scenario."""
    shape = (scenario.sources, len(VALUES))
    first = np.arange(len(VALUES)) == 0
    valid = random.random(shape) >= np.where(first, scenario.swapped, scenario.elsewhere)
    checks = scenario.checks
    invalid = np.where(first & (checks.swapped is not None), checks.swapped or 0.0, checks.invalid)
    accepted = random.random(shape) < np.where(valid, checks.valid, invalid)
    right = random.random(shape) < RATE - np.where(first, scenario.drop, 0.0)
    return CalibrationTable(valid, accepted, right & (valid | ~first), random.random(scenario.sources) < RATE)


def findings(table: CalibrationTable, seed: int, checked: Checked | Reviewed | None = None) -> list[CellEffect]:
    """The findings of a table."""
    effects = assess(table.cells(), seed, checked)
    return [effect for effect in effects if effect.standing in ("weakness", "improvement")]


def stands(table: CalibrationTable, errors: CheckErrors | None, seed: int, own: Reviewed | None = None) -> bool:
    """Whether a finding of the table stands, given the errors of the checks (None: they are unknown)."""
    checked = Checked({FACTOR: errors} if errors else {}, table.screened(), reviewed=own)
    return any(not effect.provisional for effect in findings(table, seed, checked))


def simulate(scenario: Scenario, sizes: tuple[int, ...], tables: int) -> Mapping[str, list[bool]]:
    """Whether a finding stands in each of `tables` tables, by the source of the checks' errors.

    "own": and changed images of each finding are reviewed. "a finding": whether there is one.
    """
    outcomes: defaultdict[str, list[bool]] = defaultdict(list)
    for number in range(tables):
        seed = derive_seed("calibration", scenario.name, scenario.sources, number)
        random = np.random.default_rng(seed)
        table = draw(scenario, random)
        outcomes["constructed faults"].append(stands(table, CONSTRUCTED, seed))
        errors = {n: table.reviewed(n, random) for n in sizes}
        found = findings(table, seed)
        own = table.own_reviews([effect for effect in found if effect.standing == "weakness"], random)
        outcomes["a finding"].append(bool(found))
        outcomes["own images alone"].append(stands(table, None, seed, own))
        for n in sizes:
            outcomes[f"{n} reviewed"].append(stands(table, errors[n], seed))
            outcomes[f"{n} reviewed, own"].append(stands(table, errors[n], seed, own))
    return outcomes


def differences_of(correct: Floats) -> Differences:
    """Differences in accuracy, in −1 … 1, of source images with one counterfactual each."""
    return Differences(np.arange(len(correct)), correct, correct, len(correct), len(correct), null_accuracy=RATE)


def cell_of(value: str, direction: str = "to") -> Cell:
    """The cell of a value of the simulated class and factor."""
    return Cell.model_validate({"label": "bus", "factor": FACTOR, "value": value, "direction": direction})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--only", default="", help="scenarios whose names contain this text")
    parser.add_argument("--reviewed", type=int, nargs="+", default=[60, 120, 240], help="edits that people judge")
    arguments = parser.parse_args()
    for scenario in (scenario for scenario in SCENARIOS if arguments.only in scenario.name):
        print(f"{scenario.name}, {scenario.sources} images", flush=True)
        for errors, stood in simulate(scenario, tuple(arguments.reviewed), arguments.tables).items():
            rate = clustered_rate(np.array(stood), np.arange(len(stood)))
            interval = f"{100 * rate.low:.0f} to {100 * rate.high:.0f}"
            print(f"  errors from {errors:<22} stands in {rate.count} of {rate.n} ({interval} %)", flush=True)


if __name__ == "__main__":
    main()
