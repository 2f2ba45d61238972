"""The wording of plans."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gateway.jobs.pace import Pace
from gateway.jobs.sensitivity import sensitivity


def test_a_class_states_its_power_and_the_images_needed_for_ten_points() -> None:
    plan = sensitivity({"bus": [1] * 38, "car": [1] * 8, "boat": [1]}, edits_per_image=4)
    bus, car, boat = plan.classes
    assert bus.drop is not None
    assert bus.sentence.startswith(
        f"`bus`, 38 images: a drop in accuracy of {round(100 * bus.drop)} points or more is detectable. Bring "
    )
    assert bus.sentence.endswith(" to detect 10 points.")
    assert car.sentence.startswith("`car`, 8 images: too few to test; a cell needs 12. Bring ")
    assert boat.sentence.startswith("`boat`, 1 image: too few to test")
    assert "Power is 80 %, if every image of the class gets an accepted counterfactual" in plan.assumption
    assert "8 cells are tested together" in plan.assumption


def test_a_class_of_groups_states_the_groups_it_needs() -> None:
    plan = sensitivity({"bus": [60] * 5, "car": [60]}, edits_per_image=4, unit="group")
    bus, car = plan.classes
    assert bus.sentence.startswith("`bus`, 300 images in 5 groups: too few to test; a cell needs 12 groups. Bring ")
    assert car.sentence.startswith("`car`, 60 images in 1 group: ")
    assert bus.sentence.endswith(" groups to detect 50 points.")
    assert "if every group of the class gets an accepted counterfactual" in plan.assumption


@pytest.mark.parametrize(
    ("rate", "minutes", "words"),
    [
        (1.0, 12, "1.0 images a minute, about 12 min left"),
        (24.4, 0.3, "24 images a minute, less than a minute left"),
        (3.21, 135, "3.2 images a minute, about 2 h 15 min left"),
    ],
)
def test_a_pace_states_the_rate_and_the_time_left(rate: float, minutes: float, words: str) -> None:
    assert Pace(rate, timedelta(minutes=minutes)).words == words
