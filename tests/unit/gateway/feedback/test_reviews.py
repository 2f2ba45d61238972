"""Which reviews count for a finding: those of a gain only if the reviewer saw the arm, too."""

from __future__ import annotations

import pytest

from gateway.feedback.reviews import pool
from gateway.results.reviewed_edits import OwnReviews
from shared.schemas.effects import Cell
from shared.schemas.reviews import ReviewRequest, ReviewVerdict

CELL = Cell(label="bus", factor="weather", value="day", direction="from")


def review(verdict: ReviewVerdict, arm_shown: bool) -> ReviewRequest:
    return ReviewRequest(verdict=verdict, arm_shown=arm_shown)


@pytest.mark.parametrize(
    ("reviews", "lost", "gained"),
    [
        ([review("valid", arm_shown=False)], True, None),
        ([review("valid", arm_shown=True)], True, True),
        ([review("invalid", arm_shown=False)], False, False),
        ([review("valid", arm_shown=False), review("invalid", arm_shown=True)], None, False),
        ([review("valid", arm_shown=True), review("unsure", arm_shown=True)], True, True),
        ([review("unsure", arm_shown=True)], None, None),
    ],
)
def test_only_reviewers_who_saw_the_arm_can_find_a_gain_valid(
    reviews: list[ReviewRequest], lost: bool | None, gained: bool | None
) -> None:
    pooled = pool("dillema", accepted=True, reviews=reviews)
    assert (pooled.verdict(-1), pooled.verdict(1)) == (lost, gained)


def test_a_gain_that_was_seen_without_its_arm_ends_the_random_sample() -> None:
    """Ten edits marked valid on the calibration page, which shows edits alone, let a false improvement stand."""
    own, alone = OwnReviews(), pool("dillema", accepted=True, reviews=[review("valid", arm_shown=False)])
    pair = pool("dillema", accepted=True, reviews=[review("valid", arm_shown=True)])
    for number in range(12):
        own.add(CELL, 1, f"{number:02}", number, alone if number < 10 else pair)
    (sample,) = own.samples().values()
    assert sample.sample.valid.tolist() == [True, True]
    assert not sample.decides
