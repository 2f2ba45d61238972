"""What the measurement of protection asks of drawn scenes, how it judges a picture, and the table it prints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shared.profiles import load_profile
from tinyworld.measure_protection import VISIBLE, Gallery, Thing, judged, progress, report
from tinyworld.protected_scenes import DISTRICTS, Asked, objects_asked


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    return list(objects_asked(4))


def test_scenes_have_things_to_protect_and_edits_that_leave_them(asked: list[Asked]) -> None:
    assert [one.field for one in asked] == ["time", "weather"] * 2
    for one in asked:
        assert [thing.label for thing in one.instances] == ["object", "companion"]
        assert all(0.0008 <= thing.mask.mean() < 0.5 for thing in one.instances)
        assert not (one.instances[0].mask & one.instances[1].mask).any()
        assert one.facts[one.field] == one.to_value
        assert one.to_value not in one.edit.caption or one.edit.caption != one.edit.new_caption
    assert [one.id for one in objects_asked(4)] == [one.id for one in asked]


def test_the_colour_within_a_mask_goes_from_the_source_to_the_truth(asked: list[Asked]) -> None:
    mask = asked[0].instances[0].mask
    plain, night = np.full((128, 128, 3), 200, np.uint8), np.full((128, 128, 3), 100, np.uint8)
    one = replace(asked[0], source=plain, truth=night)
    assert progress(one, plain, mask) == 0
    assert progress(one, night, mask) == 1
    assert progress(one, np.full((128, 128, 3), 150, np.uint8), mask) == pytest.approx(0.5)
    pasted = night.copy()
    pasted[mask] = 200
    assert progress(one, pasted, mask) == 0, "daylight pasted into the night is no night"
    faint = replace(one, truth=np.full((128, 128, 3), round(200 - VISIBLE / 2), np.uint8))
    assert progress(faint, plain, mask) is None


def thing(scene: int, arm: str, iou: float, inside: float | None, share: float = 0.02) -> Thing:
    return Thing(
        scene=str(scene), arm=arm, field="time", to_value="night", label="object", share=share, iou=iou,
        recognised=True, shown=scene > 0, inside=inside, seam=1.0 + scene,
    )  # fmt: skip


def test_the_report_counts_by_arm_and_size() -> None:
    things = [thing(0, "none", 0.4, 0.9), thing(1, "none", 0.5, None), thing(2, "none", 0.9, 0.2, share=0.5)]
    text = report([*things, thing(0, "relit:1", 1.0, 1.0)])
    curve, _, scene = text.partition("edit shown in the scene")
    rows = {tuple(line.split()[:3]): line for line in curve.splitlines()}
    assert "0.667 (3; " in rows["none", "all", "0.667"]
    assert "0.500 (2; " in rows["none", "all", "0.667"], "of the two whose edit shows within the mask"
    assert rows["none", ".", "small"].split()[3] == "0.500"
    assert rows["none", ".", "large"].split()[3] == "1.000"
    assert "2.00" in rows["none", "all", "0.667"], "the median seam"
    assert "1.000 (1; " in rows["relit:1", "all", "1.000"]
    assert "all 0.667 (3; " in scene


@pytest.mark.slow
def test_the_shipped_generator_keeps_shapes_in_another_light() -> None:
    district = DISTRICTS["objects"]
    gallery = Gallery(load_profile("tiny"), district)
    one = next(objects_asked(1))
    drawn = list(gallery.draw(one, ["none", "relit:1"]))
    things = list(judged(gallery, district, one, drawn))
    assert {(t.arm, t.label) for t in things} == {
        (arm, label) for arm in ("none", "relit:1") for label in district.protected
    }
    held = [t for t in things if t.arm == "relit:1"]
    assert all(t.iou >= 0.5 for t in held)
    assert all(t.inside is None or t.inside >= 0.5 for t in held)
    assert all(t.shown for t in held)
