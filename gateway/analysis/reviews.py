"""Valid shares from what people said of some counterfactuals of a job.

A picture that people reviewed stands for itself. The others are as often valid as those that were drawn by lot among
them, flipped and not flipped apart, since a lost class is lost for the model too: P(valid | flipped) is the lower one.

    valid ones of n accepted = reviewed and valid + Binomial(not reviewed, share),    share ~ Beta(drawn by lot)

Each draw is a completed table of accepted or rejected × valid or invalid. Pictures that were reviewed because they tell
most are in no lot: they would make the others look like them (verification bias: Begg & Greenes 1983).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.certainty import trials_worth
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.validity import DRAWS
from shared.schemas.results import Cell, Estimate

LEAST_ACCEPTED, LEAST_REJECTED = 20, 10  # drawn by lot, for a statement to be made


class Lot(NamedTuple):
    """Reviewed edits that were drawn by lot: whether each is valid, and its source image."""

    valid: NDArray[np.bool_]
    source: Integers


@dataclass(slots=True)
class Tally:
    """Edits of one kind: those that people called valid or invalid, and all others."""

    valid: int = 0
    invalid: int = 0
    open: int = 0

    def add(self, valid: bool | None) -> None:
        """Count one; None where nobody decided."""
        self.valid += valid is True
        self.invalid += valid is False
        self.open += valid is None

    @property
    def total(self) -> int:
        """How many there are."""
        return self.valid + self.invalid + self.open


@dataclass(frozen=True, slots=True)
class Reviewed:
    """What people said of the accepted edits of one method, as it bears on one model under test.

    `lots` are by factor ("" for all of them) and by whether the model flipped; `cells`, and `whole` for all accepted
    edits, have the tally of those on which it held, then of those on which it flipped.
    """

    lots: Mapping[tuple[str, bool], Lot]
    cells: Mapping[Cell, tuple[Tally, Tally]]
    whole: tuple[Tally, Tally]
    source: Literal["reviews"] = field(default="reviews", init=False)

    def shares(self, cell: Cell, seed: int) -> Floats:
        """Draws (20,000) of the valid share of a cell's accepted edits, ascending.

        From the lot of the cell's own factor where that is large enough, else from that of all factors.
        """
        held, flipped = self.drawn(self.cells[cell], seed, cell.factor)
        return np.sort((held + flipped) / sum(tally.total for tally in self.cells[cell]))

    def drawn(self, tallies: tuple[Tally, Tally], seed: int, factor: str = "") -> tuple[Floats, Floats]:
        """Draws of how many are valid, of those on which the model held and of those on which it flipped."""
        random = np.random.default_rng(seed)
        own = sum(len(self.lots[factor, flip].valid) for flip in (False, True) if (factor, flip) in self.lots)
        factor = factor if own >= LEAST_ACCEPTED else ""
        held, flipped = (
            valid_counts(tally, self.lots.get((factor, flip)), random)
            for flip, tally in zip((False, True), tallies, strict=True)
        )
        return held, flipped


def valid_counts(tally: Tally, lot: Lot | None, random: np.random.Generator) -> Floats:
    """Draws (20,000) of how many of the edits are valid; siblings in the lot count as in a clustered rate."""
    hits = worth = 0.0
    if lot is not None and len(lot.valid):
        worth = trials_worth(lot.valid, lot.source)
        hits = worth * float(lot.valid.mean())
    shares = random.beta(hits + 0.5, worth - hits + 0.5, DRAWS)
    return tally.valid + random.binomial(tally.open, shares).astype(np.float64)


def estimate(counts: Floats, of: Floats | float) -> Estimate | None:
    """The median of a ratio's draws with its central 95 %; None where there is nothing to divide by."""
    if not np.all(of):
        return None
    low, value, high = np.quantile(counts / of, [0.025, 0.5, 0.975])
    return Estimate(value=float(value), low=float(low), high=float(high))


def check_errors(valid: Floats, accepted: int, valid_rejected: Floats, rejected: int) -> tuple[Estimate, Estimate]:
    """P(accepted | valid) and P(accepted | invalid), from draws of the valid ones among accepted and rejected edits.

    The draws complete the table; its own sampling error is added under Jeffreys' prior, as for a calibration set.
    """
    random = np.random.default_rng(accepted)
    right = random.beta(valid + 0.5, valid_rejected + 0.5)
    wrong = random.beta(accepted - valid + 0.5, rejected - valid_rejected + 0.5)
    found = (estimate(right, 1.0), estimate(wrong, 1.0))
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1]
