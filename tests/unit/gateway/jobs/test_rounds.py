"""Rounds of an adaptive job: what they may render, however the job goes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.analysis.allocation import LATER_ROUNDS, Suspicion, allocate
from gateway.analysis.effects import Differences
from gateway.intake.sources import KeptImage, SourceFile
from gateway.jobs.choices import Plan
from gateway.jobs.designs import with_values
from gateway.jobs.rounds import (
    FIRST_IMAGES,
    LEAST_SHOWN,
    budget_of_round,
    cost_of_image,
    first_images,
    first_round,
    one_of_each_group,
    other_images,
    rendered_by,
    renderings_of_design,
)
from gateway.methods import JobMethod
from gateway.methods.dillema import DillemaParameters
from gateway.methods.lance import LanceParameters
from gateway.methods.proposed_values import ProposedValues
from gateway.results.rounds import cells_of_rounds
from shared.problems import InvalidInput
from shared.schemas.designs import ChosenValue, PlaceShare, RoundPlan
from shared.schemas.effects import Cell
from shared.schemas.evaluation import ModelUnderTestInfo

VALUES = tuple(ChosenValue(factor="weather", value=value) for value in ("night", "fog", "rain"))
METHODS = {
    "own arms": JobMethod("dillema", DillemaParameters(values=VALUES)),
    "shared arms": JobMethod("dillema", DillemaParameters(values=VALUES, same_seed=True)),
    "sweep": JobMethod("lance", LanceParameters(values=VALUES, self_fractions=(0.4, 0.8))),
}
MODEL = ModelUnderTestInfo(
    name="m1", kind="classification", classes=["car", "bus"], weights="none", revision="1", licence="Apache-2.0"
)


def screened(method: JobMethod, budget: int, images: int = 40) -> RoundPlan:
    sources = [
        SourceFile(f"{n}.png", ("car", "bus")[n % 2], KeptImage("0" * 64, "0" * 64, 8, 8, 1)) for n in range(images)
    ]
    return first_round(Plan([method], [MODEL], ["car", "bus"]), budget, sources, seed=1)


def cost_of(method: JobMethod, plans: list[list[int]]) -> int:
    """What a round renders at most, if every place gets these source images."""
    values = Counter(position for images in plans for position in images)
    return sum(cost_of_image(method, count) for count in values.values())


@pytest.mark.slow
@given(st.sampled_from(sorted(METHODS)), st.integers(100, 700), st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_a_job_whose_edits_are_all_rendered_stays_within_its_budget(name: str, budget: int, drops: list[float]) -> None:
    method = METHODS[name]
    try:
        first = screened(method, budget)
    except InvalidInput:
        return
    free = {f"{place.label}/{place.chosen.value}": range(place.planned) for place in first.places}
    counts = {f"{place.label}/{place.chosen.value}": len(place.images) for place in first.places}
    left = budget - cost_of(method, [place.images for place in first.places])
    for rounds_left in range(LATER_ROUNDS, 0, -1):
        places = {
            place: Suspicion(drop, 15, free[place][counts[place] :]) for place, drop in zip(counts, drops, strict=True)
        }
        shares = allocate(
            places, budget_of_round(method, left, rounds_left), rounds_left, partial(cost_of_image, method)
        )
        assert shares or not any(place.free for place in places.values()) or left < cost_of_image(method, 1)
        left -= cost_of(method, [[*images] for images in shares.values()])
        counts = {place: count + len(shares.get(place, [])) for place, count in counts.items()}
    assert left >= 0


def test_shared_arms_leave_more_of_the_budget_for_edits() -> None:
    """Three values of an image cost six renderings with arms of their own, five with arms that they share."""
    edits = {}
    for name in ("own arms", "shared arms"):
        first = screened(METHODS[name], 600)
        edits[name] = sum(len(place.images) for place in first.places)
        (most,) = renderings_of_design("adaptive", 600, [METHODS[name]], images=40)
        assert most.edits + most.null_arms + most.sham_arms <= 600
        assert most.edits == (300 if name == "own arms" else 360)
    assert edits["shared arms"] > edits["own arms"]


def test_all_values_of_a_class_take_its_images_in_one_order() -> None:
    first = screened(METHODS["own arms"], 600)
    assert {place.label: len(place.images) for place in first.places} == {"bus": 12, "car": 12}
    for label in ("bus", "car"):
        assert len({tuple(place.images) for place in first.places if place.label == label}) == 1
    assert {place.planned for place in first.places} == {20}
    assert screened(METHODS["own arms"], 600) == first


def test_a_place_may_get_half_of_the_budget_and_the_only_one_all_of_it() -> None:
    several = screened(METHODS["own arms"], 200, images=400)
    assert {place.planned for place in several.places} == {50}
    method = with_values(METHODS["own arms"], VALUES[:1])
    sources = [SourceFile(f"{n}.png", "car", KeptImage("0" * 64, "0" * 64, 8, 8, 1)) for n in range(400)]
    (only,) = first_round(Plan([method], [MODEL], ["car", "bus"]), 200, sources, seed=1).places
    assert only.planned == 100


def test_a_first_round_of_fewer_than_four_images_is_refused() -> None:
    assert {len(place.images) for place in screened(METHODS["own arms"], 96).places} == {4}
    with pytest.raises(InvalidInput, match="budget"):
        screened(METHODS["own arms"], 95)


def test_one_usable_image_of_each_group_is_taken_and_all_without_one() -> None:
    kept = KeptImage("0" * 64, "0" * 64, 8, 8, 1)
    sources = [SourceFile(f"{n}.png", "car", kept if n % 4 else None, group=f"video {n // 8}") for n in range(32)]
    sources += [SourceFile("alone.png", "car", kept), SourceFile("bad.png", "car", None, "broken", group="only this")]
    broken = [s if s.image else SourceFile(s.name, s.label, None, "broken", group=s.group) for s in sources]
    taken = one_of_each_group(broken, seed=1)
    assert [source.group for source in taken] == [*(f"video {n}" for n in range(4)), None, "only this"]
    assert [source.name for source in taken if source.failure] == ["bad.png"]
    assert taken == one_of_each_group(broken, seed=1)
    assert any(taken != one_of_each_group(broken, seed=seed) for seed in range(2, 6))


@pytest.mark.parametrize(("name", "renderings"), [("own arms", 7), ("shared arms", 7), ("sweep", 11)])
def test_every_attempt_of_a_sweep_is_counted(name: str, renderings: int) -> None:
    assert rendered_by(METHODS[name], edits=4, arms=3) == renderings


def test_cells_that_no_test_fits_are_left_out_and_not_called_too_small() -> None:
    """A *from* cell of 20 images was reported as "too few images to tell"."""
    place = PlaceShare(label="car", chosen=VALUES[0], images=[3, 1, 0, 2], planned=10)
    night = Cell(label="car", factor="weather", value="night", direction="to")
    values = np.array([0.0, -1.0, 0.5])
    pairs = Differences(np.array([0, 1, 3]), values, values, 3, sizes=np.array([1, 2, 3]))
    by_day = night.model_copy(update={"value": "day", "direction": "from"})
    cells = {night: pairs, by_day: pairs}
    assert cells_of_rounds(cells, []) == cells
    (cell,) = ordered = cells_of_rounds(cells, [RoundPlan(number=0, places=[place])])
    assert cell == night
    assert ordered[night].group.tolist() == [3, 1, 0]
    assert ordered[night].correct.tolist() == [0.5, -1.0, 0.0]


def test_a_balanced_job_looks_at_the_first_images_of_large_classes_before_it_goes_on() -> None:
    chosen, spare = VALUES[:2], VALUES[2]
    method = JobMethod("dillema", DillemaParameters(values=chosen))
    classes = ["car"] * 30 + ["bus"] * 10
    sources = [SourceFile(f"{n}.png", label, KeptImage("0" * 64, "0" * 64, 8, 8, 1)) for n, label in enumerate(classes)]
    plan = Plan([method], [MODEL], ["car", "bus"], proposal=ProposedValues(VALUES, "profile", {}))
    assert first_images(Plan([method], [MODEL], ["car", "bus"]), sources, seed=1) is None  # the request's own values
    first = first_images(plan, sources, seed=1)
    assert first is not None
    assert first.spare == [spare]
    assert {(place.label, place.chosen, len(place.images)) for place in first.places} == {
        (label, value, images) for label, images in (("car", FIRST_IMAGES), ("bus", 10)) for value in chosen
    }
    by_label = {"car": range(30), "bus": range(30, 40)}
    shown = {chosen[0]: FIRST_IMAGES, chosen[1]: LEAST_SHOWN - 1}
    for accepted, expected in (
        ({"car": shown}, [chosen[0], spare]),
        ({"car": dict.fromkeys(chosen, LEAST_SHOWN)}, [*chosen]),
    ):
        places = other_images(first, accepted, by_label).places
        assert [(place.label, place.chosen) for place in places] == [("car", value) for value in expected]
        assert all(not {*place.images} & {*first.positions()} and len(place.images) == 24 for place in places)
    alone = first.model_copy(update={"spare": []})
    assert [place.chosen for place in other_images(alone, {}, by_label).places] == [*chosen]  # nothing to go on with
