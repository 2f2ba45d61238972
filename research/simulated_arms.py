"""How often do lost null arms cause an improvement that stands? Tables with a known truth.

A sound model, right on 95 % of images that show the class. All edits are valid, and the errors of the checks on edits
are known. In one of eight cells a share of the null arms shows another class, and the checks of arms accept 17 of 28 of
these (as on LANCE's natural output, `research/labels`), so the cell looks like an improvement. Then people review up
to 10 changed images of each finding: the edit alone, or the edit with its arm.
Run: `python -m research.simulated_arms --tables 20`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.effects import Differences
from gateway.analysis.findings import Checked, assess
from gateway.analysis.reviews import LEAST_OWN, OwnSample, RandomSample, Reviewed, Tally
from gateway.analysis.validity import Screened
from research.simulated_calibration import FACTOR, NATURAL, RATE, VALUES, cell_of, differences_of
from shared.schemas.effects import Cell, CheckErrors
from shared.seeds import derive_seed

ERRORS = CheckErrors(valid=120, valid_accepted=108, invalid=120, invalid_accepted=12)  # of a sharp, calibrated check
SETTINGS = ((80, 0.5, 0.0), (80, 0.3, 0.0), (300, 0.3, 0.0), (80, 0.0, 0.6))
"""Source images, share of the first cell's arms that show another class, true gain in the first cell."""


@dataclass(frozen=True, slots=True)
class ArmTable:
    """Counted pairs of each cell (`difference`: right on the edit − right on the arm), and whether the arm is lost."""

    difference: list[NDArray[np.float64]]
    lost: list[NDArray[np.bool_]]
    screened: dict[Cell, Screened]

    def cells(self) -> dict[Cell, Differences]:
        """The differences of each cell."""
        return {cell_of(value, "from"): differences_of(self.difference[n]) for n, value in enumerate(VALUES)}

    def reviewed(self, *, pairs: bool) -> Reviewed:
        """Reviews of up to 10 gained images of each cell, of the edit alone or with its arm; all edits are valid."""
        own, tallies = {}, {}
        for place, value in enumerate(VALUES):
            gained = self.difference[place] > 0
            valid = ~self.lost[place][gained][:LEAST_OWN] if pairs else np.ones(min(LEAST_OWN, int(gained.sum())), bool)
            cell = cell_of(value, "from")
            own[cell] = OwnSample(RandomSample(valid, np.arange(len(valid))), int(gained.sum()))
            flipped, seen = int((self.difference[place] != 0).sum()), int(valid.sum())
            of_flipped = Tally(seen, len(valid) - seen, flipped - len(valid))
            tallies[cell] = Tally(open=len(gained) - flipped), of_flipped
        return Reviewed({}, tallies, (Tally(), Tally()), own=own)


def draw(sources: int, swapped: float, gain: float, random: np.random.Generator) -> ArmTable:
    """A random table. With a true gain the model is wrong on so many more arms that show the class."""
    differences, losses, screened = [], [], {}
    for place, value in enumerate(VALUES):
        lost = random.random(sources) < (swapped if place == 0 else 0.0)
        kept = random.random(sources) < np.where(lost, NATURAL.invalid, NATURAL.valid)
        right = (random.random(sources) < RATE - (gain if place == 0 else 0.0)) & ~lost
        edit = random.random(sources) < RATE
        differences.append((edit.astype(float) - right)[kept])
        losses.append(lost[kept])
        screened[cell_of(value, "from")] = Screened(np.arange(sources), random.random(sources) < 0.9)
    return ArmTable(differences, losses, screened)


def stands(table: ArmTable, seed: int, reviewed: Reviewed | None) -> bool:
    """Whether an improvement of the table stands."""
    checked = Checked({FACTOR: ERRORS}, table.screened, reviewed=reviewed)
    effects = assess(table.cells(), seed, checked)
    return any(effect.standing == "improvement" and not effect.provisional for effect in effects)


def simulate(sources: int, swapped: float, gain: float, tables: int) -> dict[str, list[bool]]:
    """Whether an improvement stands in each table, by what people reviewed."""
    outcomes: dict[str, list[bool]] = {"nothing": [], "edits alone": [], "edits with their arms": []}
    for number in range(tables):
        seed = derive_seed("arms", sources, str(swapped), str(gain), number)
        table = draw(sources, swapped, gain, np.random.default_rng(seed))
        outcomes["nothing"].append(stands(table, seed, None))
        outcomes["edits alone"].append(stands(table, seed, table.reviewed(pairs=False)))
        outcomes["edits with their arms"].append(stands(table, seed, table.reviewed(pairs=True)))
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    arguments = parser.parse_args()
    for sources, swapped, gain in SETTINGS:
        tables = max(1, arguments.tables * 80 // sources)
        print(f"{sources} images, {swapped:.0%} of one cell's arms swapped, true gain {100 * gain:.0f} points")
        for reviewed, stood in simulate(sources, swapped, gain, tables).items():
            rate = clustered_rate(np.array(stood), np.arange(len(stood)))
            interval = f"{100 * rate.low:.0f} to {100 * rate.high:.0f} %"
            print(f"  reviewed: {reviewed:<22} stands in {rate.count} of {rate.n} ({interval})", flush=True)


if __name__ == "__main__":
    main()
