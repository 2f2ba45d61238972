"""Which share of refused edits, and of accepted ones whose arm is refused, the bounds of an effect take as valid."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.bounds import Refused
from gateway.analysis.effects import Differences, Estimand, Floats, Integers
from gateway.analysis.findings import Checked, assess
from gateway.analysis.reviews import RandomSample, Reviewed, Tally
from gateway.analysis.validity import Screened
from gateway.results.estimands import with_bounds, with_others
from shared.schemas.effects import Bounds, Cell, CheckErrors

CELL = Cell(label="car", factor="weather", value="snow", direction="to")
SOURCES, LOST, REFUSED = 60, 20, 40


def bounds_of(checked: Checked | Reviewed | None) -> Bounds:
    """60 images without an effect; the model fails on 20 accepted edits without arm, and on 40 refused edits."""
    zeros = np.zeros(SOURCES)
    cells = {CELL: Differences(np.arange(SOURCES), zeros, zeros, SOURCES, sizes=np.ones(SOURCES, int))}
    lost = np.arange(LOST + REFUSED) < LOST
    refused = {
        CELL: Refused(np.arange(LOST + REFUSED), np.full(LOST + REFUSED, -1.0), np.full(LOST + REFUSED, -1.0), lost)
    }
    (effect,) = with_bounds(assess(cells, 1), cells, refused, checked, 1)
    assert effect.bounds is not None
    return effect.bounds


def test_most_accepted_edits_without_arm_may_be_valid_where_few_refused_ones_are() -> None:
    errors = CheckErrors(valid=300, valid_accepted=299, invalid=300, invalid_accepted=3)
    accepted = np.arange(SOURCES + LOST + REFUSED) < SOURCES + LOST
    screened = Screened(np.arange(len(accepted)) % SOURCES, accepted)
    bounds = bounds_of(Checked({"weather": errors}, {CELL: screened}))
    assert (bounds.refused, bounds.lost, bounds.source) == (REFUSED, LOST, "checks")
    assert bounds.share < 0.1
    assert bounds.lost_share > 0.95
    assert bounds.low <= -LOST / 2 / SOURCES


def test_without_errors_of_the_checks_all_may_be_valid() -> None:
    bounds = bounds_of(None)
    assert (bounds.share, bounds.lost_share, bounds.source) == (1.0, 1.0, "none")
    assert bounds.low == pytest.approx(-0.5)


@pytest.mark.parametrize(("valid", "low", "high"), [(0, 0.0, 0.2), (20, 0.67, 0.9), (30, 0.95, 1.0)])
def test_reviews_of_accepted_edits_say_how_many_without_arm_may_be_valid(valid: int, low: float, high: float) -> None:
    samples = {("", flipped): RandomSample(np.arange(30) < valid, np.arange(30)) for flipped in (False, True)}
    tallies = Tally(open=30), Tally(open=30)
    bounds = bounds_of(Reviewed(samples, {CELL: tallies}, tallies, valid_rejected=0.1))
    assert (bounds.share, bounds.source) == (0.1, "reviews")
    assert low <= bounds.lost_share <= high


def test_without_a_fixed_number_of_images_other_estimands_have_no_interval() -> None:
    def measured(rows: Integers, estimand: Estimand = "pairs") -> Differences:
        kept = rows if estimand == "edits" else rows[:40]
        values: Floats = -np.ones(len(kept))
        return Differences(kept, values, values, len(kept))

    cells = {CELL: np.arange(SOURCES)}
    effects = assess({CELL: measured(cells[CELL])}, 1)
    (fixed,) = with_others(effects, cells, measured, 1, shams=False)
    (adaptive,) = with_others(effects, cells, measured, 1, shams=False, fixed=False)
    assert fixed.others[0].interval is not None
    assert (adaptive.others[0].sources, adaptive.others[0].interval) == (SOURCES, None)
