"""The scorer's errors bias the comparison with own images, and its interval ignores them; marks by eye mend both."""

from __future__ import annotations

import numpy as np

from research.simulated_own_images import compare


def outcomes(*, by_eye: bool) -> tuple[float, float]:
    """The mean error of the difference, in points, and how often its interval covers the truth."""
    results = [result for table in range(100) if (result := compare(0.1, table, by_eye=by_eye)) is not None]
    errors = [100 * (result.difference + 0.3) for result in results]
    return float(np.mean(errors)), float(np.mean([result.covers for result in results]))


def test_the_interval_of_the_scorers_choice_is_not_that_of_the_value() -> None:
    bias, coverage = outcomes(by_eye=False)
    assert 9 < bias < 16
    assert coverage < 0.7


def test_marks_by_eye_mend_bias_and_coverage() -> None:
    bias, coverage = outcomes(by_eye=True)
    assert abs(bias) < 3
    assert coverage > 0.9
