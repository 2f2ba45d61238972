"""Power: the analysis finds the drops that the plan names as often as the plan says."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.certainty import p_beyond
from gateway.analysis.effects import Differences
from gateway.analysis.findings import assess
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE
from gateway.analysis.matched_pairs import PairCounts, p_value
from gateway.analysis.power import ACCURACY, detectable_drop, finding_rate, sources_needed
from gateway.jobs.sensitivity import OBSERVED, Conditions, GroupedTruth, sensitivity, sensitivity_of
from gateway.methods import read_method
from shared.schemas.effects import Cell

FOUR_EDITS = [read_method("lance-r", {})]


@pytest.mark.slow
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("sources", "family"), [(16, 8), (38, 24)])
def test_the_stated_drop_is_found_four_times_of_five(sources: int, family: int, paired: bool) -> None:
    drop, arms = detectable_drop(sources, family, paired=paired), ACCURACY if paired else None
    assert drop is not None
    random = np.random.default_rng(sources)
    none = Differences(np.arange(sources), np.zeros(sources), np.zeros(sources), sources)
    others = {Cell(label="car", factor="weather", value=str(k), direction="to"): none for k in range(family - 1)}
    mine = Cell(label="bus", factor="weather", value="night", direction="to")
    findings, trials = 0, 120
    for trial in range(trials):
        right, before = random.random(sources) < ACCURACY - drop, random.random(sources) < ACCURACY
        differences = Differences(
            np.arange(sources), right.astype(float) - before, np.zeros(sources), sources, None, arms
        )
        effects = assess({mine: differences, **others}, trial)
        findings += effects[0].cell == mine and effects[0].standing == "weakness"
    assert findings / trials > 0.8 - 3 * np.sqrt(0.16 / trials)


def test_a_unanimous_failure_is_a_finding_in_as_large_a_family_as_in_the_analysis() -> None:
    for p, paired in ((p_beyond(-np.ones(14), BEYOND, 1) / 2, False), (p_value(PairCounts(14, 14, 0), BEYOND), True)):
        largest = int(FALSE_DISCOVERY_RATE / p)
        assert largest > 1
        assert finding_rate(1.0, 14, largest, 1.0, paired) == 1
        assert finding_rate(1.0, 14, largest + 1, 1.0, paired) == 0


def test_more_images_show_smaller_drops_and_more_tests_larger_ones() -> None:
    shown = [detectable_drop(sources, 24) or 1.0 for sources in (11, 12, 16, 24, 38, 60, 99, 187, 400)]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == 1.0  # fewer than 12: nothing
    assert (detectable_drop(38, 4) or 1) < (detectable_drop(38, 100) or 0)
    assert detectable_drop(187, 24) == detectable_drop(180, 24)
    assert sources_needed(0.06, 10_000) is None


@pytest.mark.slow
@pytest.mark.parametrize("drop", [0.5, 0.25, 0.1])
def test_the_images_to_bring_show_the_drop(drop: float) -> None:
    needed = sources_needed(drop, 24)
    assert needed is not None
    assert (detectable_drop(needed, 24) or 1) <= drop + 0.011  # other lots
    assert (detectable_drop(needed // 2, 24) or 1) > drop


def test_a_plan_has_the_drop_that_each_class_detects() -> None:
    plan = sensitivity({"bus": [1] * 38, "car": [1] * 8, "boat": [1]}, edits_per_image=4)
    assert plan.family == 8
    bus, car, boat = plan.classes
    assert (bus.sources, bus.drop) == (38, detectable_drop(38, 8))
    assert [(few.sources, few.drop) for few in (car, boat)] == [(8, None), (1, None)]
    assert sensitivity({}, 4).classes == []


def test_groups_of_images_decide_the_drop_not_their_number() -> None:
    frames = [GroupedTruth(["bus"], drive) for drive in range(5) for _ in range(60)]
    plan = sensitivity_of(frames, FOUR_EDITS)
    (few,) = plan.classes
    assert (plan.unit, few.sources, few.groups, few.drop) == ("group", 300, 5, None)
    drives = [GroupedTruth(["bus"], str(drive)) for drive in range(38) for _ in range(3)]
    (bus,) = sensitivity_of([*drives, *[GroupedTruth(["bus"], None)] * 2], FOUR_EDITS).classes
    (alone,) = sensitivity_of([GroupedTruth(["bus"], None)] * 40, FOUR_EDITS).classes
    assert (bus.sources, bus.groups, bus.drop) == (116, 40, detectable_drop(40, 8, paired=False))
    assert (alone.groups, alone.sources, alone.drop) == (None, 40, detectable_drop(40, 8))


def test_a_group_counts_if_one_of_its_edits_is_accepted() -> None:
    half = Conditions(acceptance=0.5, basis=OBSERVED)
    drives = [GroupedTruth(["bus"], drive) for drive in range(40) for _ in range(10)]
    (grouped,) = sensitivity_of(drives, FOUR_EDITS, conditions=half).classes
    (alone,) = sensitivity_of([GroupedTruth(["bus"], None)] * 40, FOUR_EDITS, conditions=half).classes
    assert grouped.drop == detectable_drop(40, 8, paired=False)
    assert alone.drop == detectable_drop(20, 8)
