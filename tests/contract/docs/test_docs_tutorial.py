"""The plan that the tutorial shows is the one that `contrafact submit --dry-run` prints for its images."""

from __future__ import annotations

from gateway.analysis.power import detectable_drop, sources_needed
from tests.support.paths import REPOSITORY

IMAGES = 30  # of each class
FAMILY = 24  # tests: three classes, two directions, four edits per image


def test_the_plan_of_the_tutorial() -> None:
    page = (REPOSITORY / "docs" / "tutorials" / "your-own-model.md").read_text(encoding="utf-8")
    drop = detectable_drop(IMAGES, FAMILY)
    assert drop is not None
    assert (
        f"`bus`, {IMAGES} images: a drop in accuracy of {round(100 * drop)} points or more is detectable. "
        f"Bring {sources_needed(0.1, FAMILY):,} to detect 10 points." in page
    )
