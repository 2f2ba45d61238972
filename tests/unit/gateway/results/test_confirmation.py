"""What a second editor's effect says about a finding."""

from __future__ import annotations

import pytest

from gateway.results.confirmation import with_confirmations
from shared.schemas.effects import Interval, Standing
from tests.support.figures import effect, job_results, results


@pytest.mark.parametrize(
    ("standing", "low", "high", "verdict"),
    [
        ("weakness", -0.9, -0.3, "confirmed"),
        ("weakness", -0.9, -0.04, "not confirmed"),
        ("improvement", 0.3, 0.9, "confirmed"),
        ("improvement", 0.04, 0.9, "not confirmed"),
        ("improvement", -0.9, -0.3, "not confirmed"),
    ],
)
def test_a_finding_is_confirmed_by_an_interval_on_its_own_side(
    standing: Standing, low: float, high: float, verdict: str
) -> None:
    finding = effect("night", -50).model_copy(update={"standing": standing})
    interval = Interval(low=low, high=high, level=0.95, kind="betting")
    again = effect("night", 0).model_copy(update={"interval": interval})
    second = job_results(results("dillema", again))
    (figures,) = with_confirmations(job_results(results("lance", finding)), [second]).results
    assert figures.cells[0].confirmation is not None
    assert figures.cells[0].confirmation.verdict == verdict
