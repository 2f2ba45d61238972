"""The interval of pooled mIoU on tables with known truth."""

from __future__ import annotations

import numpy as np

from research.simulated_overlaps import Overlaps, simulate_tables


def test_the_pooled_interval_covers_with_a_rare_class_and_unequal_numbers_of_edits() -> None:
    """Easy images have four edits, others one."""
    setting = Overlaps(groups=20, rare=0.15, lost=0.06)
    rows = simulate_tables(setting, 200)
    covered = [row.covered for row in rows if row.covered is not None]
    assert len(covered) > 80
    assert np.mean(covered) >= 0.95 - 2.6 * np.sqrt(0.95 * 0.05 / len(covered))
    assert abs(np.mean([row.error for row in rows])) < 0.02
    assert np.mean([row.error_null_once for row in rows]) > 0.03
    assert np.mean([row.error_predicted for row in rows]) < -0.03
