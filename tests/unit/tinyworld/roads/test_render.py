"""The renderer of driving scenes: deterministic, with exact masks, and looks that change their own pixels alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scene_fields import differing_fields
from tinyworld.domain.scenes import SPLITS
from tinyworld.objects.world import sample_scene as sample_object_scene
from tinyworld.roads.render import PEDESTRIAN, VEHICLE, permitted_mask, render
from tinyworld.roads.world import (
    CLASSES,
    EDIT_FACTOR,
    FACTOR_VALUES,
    LOOKS,
    PALETTE,
    SHAPES,
    Scene,
    sample_scene,
    withheld,
)

indices = st.integers(0, 9_999_999)
looks = st.sampled_from([(look, value) for look, values in LOOKS.items() for value in values])
few = settings(max_examples=15, deadline=None, derandomize=True)


@pytest.mark.slow
def test_render_is_deterministic_and_of_any_aspect() -> None:
    for index in range(4):
        scene = sample_scene("demo", index)
        assert np.array_equal(render(scene).image, render(scene).image)
        for width, height in ((192, 128), (96, 160)):
            rendering = render(scene, width, height)
            assert rendering.image.shape == (height, width, 3)
            assert rendering.classes.shape == rendering.instances.shape == (height, width)


@pytest.mark.slow
@few
@given(index=indices, change=looks)
def test_a_look_leaves_every_mask_and_touches_only_what_it_may(index: int, change: tuple[str, str]) -> None:
    scene = sample_scene("demo", index)
    look, value = change
    before, after = render(scene), render(scene.changed(**{look: value}))
    assert np.array_equal(before.classes, after.classes)
    assert np.array_equal(before.instances, after.instances)
    assert before.instance_classes == after.instance_classes
    outside = (before.image != after.image).any(axis=2) & ~permitted_mask(scene, look)
    assert not outside.any(), f"{look} -> {value} touches {outside.sum()} pixels too many of {scene}"


@pytest.mark.slow
@few
@given(index=indices, state=st.sampled_from(("red", "yellow", "green")))
def test_the_state_of_a_traffic_light_is_a_look(index: int, state: str) -> None:
    scene = sample_scene("demo", index).changed(traffic_light="red")
    before, after = render(scene), render(scene.changed(traffic_light=state))
    assert np.array_equal(before.classes, after.classes)
    assert not ((before.image != after.image).any(axis=2) & ~permitted_mask(scene, "traffic_light")).any()


def test_looks_may_not_touch_everything() -> None:
    scene = sample_scene("demo", 3).changed(vehicle="car", pedestrian="walking", style="photo", surface="asphalt")
    for look in ("vehicle_colour", "clothes", "surface", "season", "buildings"):
        assert permitted_mask(scene, look).mean() < 0.6, look


@pytest.mark.slow
@few
@given(index=indices)
def test_instances_are_parts_of_their_class(index: int) -> None:
    rendering = render(sample_scene("demo", index))
    for name in ("vehicle", "pedestrian"):
        numbers = [number for number, class_name in rendering.instance_classes.items() if class_name == name]
        assert np.array_equal(np.isin(rendering.instances, numbers), rendering.classes == CLASSES.index(name))
    assert set(np.unique(rendering.instances)) == {0, *rendering.instance_classes}


@pytest.mark.slow
def test_the_named_pedestrian_is_large_enough_to_be_judged() -> None:
    heights, widths = [], []
    for index in range(80):
        scene = replace(sample_scene("demo", index), pedestrian="standing")
        rows, columns = np.nonzero(render(scene).instances == PEDESTRIAN)
        if len(rows) and columns.min() > 0 and columns.max() < 127:
            heights.append(int(np.ptp(rows)) + 1)
            widths.append(int(np.ptp(columns)) + 1)
    assert len(heights) > 60
    whole = [tall >= 20 and wide >= 8 for tall, wide in zip(heights, widths, strict=True)]
    assert np.mean(whole) > 0.95  # a vehicle or the traffic light may hide some
    assert max(heights) >= 40


def test_without_a_vehicle_or_pedestrian_there_is_none_of_that_number() -> None:
    scene = sample_scene("demo", 5)
    assert VEHICLE not in render(scene.changed(vehicle="none")).instance_classes
    assert PEDESTRIAN not in render(scene.changed(pedestrian="none")).instance_classes
    assert render(scene.changed(vehicle="bus")).instance_classes[VEHICLE] == "vehicle"


@pytest.mark.parametrize("field", list(FACTOR_VALUES))
def test_every_value_shows(field: str) -> None:
    base = sample_scene("demo", 12).changed(
        vehicle="car", pedestrian="standing", where="sidewalk", style="photo", weather="clear", time="day"
    )
    images = [render(base.changed(**{field: value})).image.astype(int) for value in FACTOR_VALUES[field]]
    for i, first in enumerate(images):
        for second in images[:i]:
            assert np.abs(first - second).max() > 20


@pytest.mark.slow
def test_light_and_weather_look_like_themselves() -> None:
    scenes = [sample_scene("demo", i).changed(style="photo", weather="clear", time="day") for i in range(20)]
    for scene in scenes:
        day, night = render(scene), render(scene.changed(time="night"))
        assert night.image.mean() < 0.6 * day.image.mean()
        road = day.classes == CLASSES.index("road")
        snowy = render(scene.changed(surface="snowy")).image[road].mean()
        assert snowy > render(scene.changed(surface="asphalt")).image[road].mean() + 50
        dry = scene.changed(surface="asphalt")
        change = np.abs(render(dry.changed(weather="fog")).image.astype(float) - render(dry).image).mean(axis=2)
        rows = np.broadcast_to(np.arange(128)[:, None], road.shape)
        assert change[road & (rows < 72)].mean() > change[road & (rows > 110)].mean() + 30  # fades with distance


@pytest.mark.slow
def test_all_classes_occur_and_have_a_colour() -> None:
    classes: set[int] = set()
    for index in range(40):
        classes |= set(np.unique(render(sample_scene("demo", index)).classes))
    assert classes == set(range(len(CLASSES)))
    assert len(set(PALETTE)) == len(CLASSES)


def test_roles_share_no_seed_and_a_tenth_is_withheld_from_generators() -> None:
    seeds = {sample_scene(split, index).geometry_seed for split in SPLITS for index in (0, 9_999_999)}
    objects = {sample_object_scene(split, index).geometry_seed for split in SPLITS for index in (0, 9_999_999)}
    assert len(seeds) == len(objects) == 2 * len(SPLITS)
    assert not seeds & objects
    share = np.mean([withheld(sample_scene("final-test", index)) for index in range(3000)])
    assert 0.08 < share < 0.125
    assert not any(withheld(sample_scene("generator", index, allow_withheld=False)) for index in range(300))


def test_factors_are_closed_lists() -> None:
    scene = sample_scene("demo", 0)
    with pytest.raises(ValueError, match="surface is 'icy'"):
        scene.changed(surface="icy")
    with pytest.raises(ValueError, match="outside"):
        sample_scene("demo", -1)
    assert differing_fields(scene, scene.changed(season="spring")) <= {"season"}
    assert set(FACTOR_VALUES) == {f for f in Scene.__dataclass_fields__ if f != "geometry_seed"}
    assert set(EDIT_FACTOR) == set(LOOKS) | {"traffic_light"}
    assert not set(SHAPES) & set(LOOKS)
