"""Corrections for validity: breakdown points, valid shares, and effects among valid counterfactuals."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.effects import Differences, Floats
from gateway.analysis.findings import Checked, assess
from gateway.analysis.validity import Screened, among_valid, breakdown_point, valid_shares
from shared.schemas.effects import Cell, CheckErrors

CELL = Cell(label="bus", factor="weather", value="night", direction="to")
GOOD = CheckErrors(valid=400, valid_accepted=380, invalid=400, invalid_accepted=8)
BLIND = CheckErrors(valid=50, valid_accepted=40, invalid=50, invalid_accepted=41)


def of(correct: Floats) -> Differences:
    return Differences(np.arange(len(correct)), correct, correct, len(correct))


def screened(sources: int, accepted: float) -> Screened:
    return Screened(np.repeat(np.arange(sources), 2), np.random.default_rng(1).random(2 * sources) < accepted)


@pytest.mark.parametrize("bound", [-1.0, -0.36, -0.06, 0.4])
def test_at_its_breakdown_point_a_finding_is_five_points(bound: float) -> None:
    share = breakdown_point(bound)
    assert (abs(bound) - share) / (1 - share) == pytest.approx(0.05) if share < 1 else bound == -1
    assert breakdown_point(-0.05) == breakdown_point(0.01) == 0


def test_perfect_checks_change_nothing_but_what_their_own_calibration_leaves_open() -> None:
    certain = CheckErrors(valid=10**7, valid_accepted=10**7, invalid=10**7, invalid_accepted=0)
    effect = among_valid(of(np.repeat([-1.0, 0.0], [24, 16])), 0.95, certain, screened(40, 0.7), seed=1)
    assert effect.valid == pytest.approx(1, abs=1e-4)
    assert effect.estimate == pytest.approx(-0.6, abs=1e-4)
    assert effect.stands


def test_the_valid_share_is_the_one_that_made_the_counts() -> None:
    """Half of 4,000 rendered are valid; 95 % of these and 2 % of the others were accepted."""
    random = np.random.default_rng(3)
    valid = random.random(4_000) < 0.5
    accepted = random.random(4_000) < np.where(valid, 0.95, 0.02)
    shares = valid_shares(GOOD, Screened(np.arange(4_000), accepted), seed=2)
    truth = (valid & accepted).sum() / accepted.sum()
    assert shares[len(shares) // 2] == pytest.approx(truth, abs=0.01)
    assert shares[len(shares) // 20] < truth < shares[-len(shares) // 20]


def test_blind_checks_leave_everything_open() -> None:
    effect = among_valid(of(-np.ones(40)), 0.95, BLIND, screened(40, 0.8), seed=1)
    assert (effect.interval.low, effect.interval.high, effect.stands) == (-1, 1, False)


def test_a_finding_has_its_breakdown_point_and_what_the_checks_leave_of_it() -> None:
    cells = {CELL: Differences(np.arange(40), np.repeat([-1.0, 0.0], [32, 8]), np.zeros(40), 40)}
    (plain,) = assess(cells, 1)
    assert plain.breakdown is not None
    assert plain.selected_interval is not None
    assert plain.breakdown == pytest.approx((-plain.selected_interval.high - 0.05) / 0.95)
    assert plain.provisional
    good, blind = (
        assess(cells, 1, Checked({"default": errors}, {CELL: screened(40, 0.7)}))[0] for errors in (GOOD, BLIND)
    )
    assert good.standing == blind.standing == "weakness"
    assert good.among_valid is not None
    assert good.among_valid.interval.high > plain.selected_interval.high
    assert not good.provisional
    assert blind.provisional


def test_errors_are_of_the_class_where_enough_were_judged_and_otherwise_pooled() -> None:
    cells = {CELL: Differences(np.arange(40), np.repeat([-1.0, 0.0], [32, 8]), np.zeros(40), 40)}
    screen = {CELL: screened(40, 0.7)}
    few = CheckErrors(valid=18, valid_accepted=17, invalid=11, invalid_accepted=10)
    one_sided = CheckErrors(valid=60, valid_accepted=50, invalid=9, invalid_accepted=9)
    stands = []
    for class_errors in (few, one_sided, BLIND):
        (effect,) = assess(cells, 1, Checked({"default": GOOD}, screen, {"bus": class_errors, "car": BLIND}))
        assert effect.among_valid is not None
        stands.append((effect.among_valid.pool, effect.among_valid.stands))
    assert stands == [("all", True), ("all", True), ("class", False)]
    (by_factor,) = assess(cells, 1, Checked({"default": BLIND, "weather": GOOD}, screen))
    assert by_factor.among_valid is not None
    assert by_factor.among_valid.pool == "factor"


def test_errors_are_of_the_factor_or_of_all() -> None:
    cells = {CELL: Differences(np.arange(20), -np.ones(20), np.zeros(20), 20)}
    other = Checked({"background": GOOD}, {CELL: screened(20, 0.9)})
    assert assess(cells, 1, other)[0].among_valid is None
    with pytest.raises(ValueError, match="more accepted than measured"):
        CheckErrors(valid=2, valid_accepted=3, invalid=1, invalid_accepted=0)
