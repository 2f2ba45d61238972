"""Figures of examples in the pages are those that the code computes."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from gateway.analysis.betting import least_images
from gateway.analysis.certainty import LEVEL, mean_interval
from gateway.analysis.limits import BEYOND
from gateway.analysis.power import detectable_drop, sources_needed
from shared.wording import points
from tests.support.paths import REPOSITORY

FAMILY = 24  # three classes, two directions, four edits per image


def page(name: str) -> str:
    """A page in one line."""
    return " ".join((REPOSITORY / "docs" / name).read_text(encoding="utf-8").split())


def test_the_interval_of_twelve_lost_images_of_fourteen() -> None:
    interval = mean_interval(np.repeat([-1.0, 0.0], [12, 2]), LEVEL, 14)
    limits = f"{points(interval.low)} to {points(interval.high)} points"
    assert f"if 12 of 14 images fail, it is {limits}" in page("explanation/metrics.md")


def test_the_images_that_an_effect_of_segmenters_takes() -> None:
    needed = {}
    for effect in (0.2, 0.08):
        start = least_images(effect, BEYOND, 1 - LEVEL)
        images = (n for n in count(start) if mean_interval(np.full(n, -effect), LEVEL, n).high < -BEYOND)
        needed[effect] = next(images)
    text = page("explanation/metrics.md")
    assert f"an effect of 20 points in every image takes [{needed[0.2]} images]" in text
    assert f"one of 8 takes {needed[0.08]}." in text
    stated = f"betting interval needs {needed[0.08]} for 8 points and {needed[0.2]} for 20"
    assert stated in page("measurements/statistics.md")


@pytest.mark.parametrize(("name", "images"), [("explanation/metrics.md", 38), ("tutorials/your-own-model.md", 30)])
def test_the_plans_of_examples(name: str, images: int) -> None:
    drop, needed = detectable_drop(images, FAMILY), sources_needed(0.1, FAMILY)
    assert drop is not None
    assert (
        f"`bus`, {images} images: a drop in accuracy of {round(100 * drop)} points or more is detectable. "
        f"Bring {needed:,} to detect 10 points." in page(name).replace("> ", "")
    )
