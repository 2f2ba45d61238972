"""The text checks on captions of drawn objects."""

from __future__ import annotations

from research.measure.text_checks import SORTS, cases, check_cases


def test_the_checks_tell_right_edits_of_tinyworlds_captions_from_wrong_ones() -> None:
    results = check_cases(cases("calibration", 15), "tiny")
    assert len(results) == 15 * len(SORTS)
    right = [not check for case, check, _ in results if case.right]
    wrong = [not check for case, check, _ in results if not case.right]
    assert sum(right) >= 0.95 * len(right)
    assert sum(wrong) <= 0.05 * len(wrong)
