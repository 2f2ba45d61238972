"""Measuring protection: the edits of drawn scenes, the judgement of an image, and the printed table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shared.profiles import load_profile
from tinyworld.judges.protection.domain import ProtectedEdit, overlaps
from tinyworld.judges.protection.gallery import Gallery, parameters
from tinyworld.judges.protection.objects import OBJECTS, object_edits
from tinyworld.measure.protection import (
    VISIBLE,
    Thing,
    judge_images,
    keep_setting,
    progress,
    report,
)


@pytest.fixture(scope="module")
def edits() -> list[ProtectedEdit]:
    return list(object_edits(4))


def test_scenes_have_things_to_protect_and_edits_that_leave_them(edits: list[ProtectedEdit]) -> None:
    assert [edit.field for edit in edits] == ["time", "weather"] * 2
    for edit in edits:
        assert [thing.label for thing in edit.instances] == ["object", "companion"]
        assert all(0.0008 <= thing.mask.mean() < 0.5 for thing in edit.instances)
        assert not (edit.instances[0].mask & edit.instances[1].mask).any()
        assert edit.facts[edit.field] == edit.to_value
        assert edit.to_value not in edit.edit.caption or edit.edit.caption != edit.edit.new_caption
    assert [edit.id for edit in object_edits(4)] == [edit.id for edit in edits]


def test_the_colour_within_a_mask_goes_from_the_source_to_the_truth(edits: list[ProtectedEdit]) -> None:
    mask = edits[0].instances[0].mask
    plain, night = np.full((128, 128, 3), 200, np.uint8), np.full((128, 128, 3), 100, np.uint8)
    edit = replace(edits[0], source=plain, truth=night)
    assert progress(edit, plain, mask) == 0
    assert progress(edit, night, mask) == 1
    assert progress(edit, np.full((128, 128, 3), 150, np.uint8), mask) == pytest.approx(0.5)
    pasted = night.copy()
    pasted[mask] = 200
    assert progress(edit, pasted, mask) == 0, "daylight pasted into the night is no night"
    faint = replace(edit, truth=np.full((128, 128, 3), round(200 - VISIBLE / 2), np.uint8))
    assert progress(faint, plain, mask) is None


def test_a_thing_is_found_where_it_was_and_has_a_size(edits: list[ProtectedEdit]) -> None:
    labels = ("background", "object", "companion")
    for edit in edits:
        label_map = np.zeros((128, 128), np.uint8)
        for thing in edit.instances:
            label_map[thing.mask] = labels.index(thing.label)
        assert overlaps(label_map, labels, edit.instances, OBJECTS.overlap) == [1.0, 1.0]
        gone = np.where(label_map == 2, 0, label_map)
        assert overlaps(gone, labels, edit.instances, OBJECTS.overlap) == [1.0, 0.0]
        shares = [thing.share for thing in edit.instances]
        expected = ["small" if share <= 0.03 else "medium" if share <= 0.1 else "large" for share in shares]
        assert [OBJECTS.size(thing) for thing in edit.instances] == expected


def test_controls_are_chosen_by_kind_and_weight_among_the_profiles() -> None:
    profile = load_profile("paper")
    chosen = parameters(profile, ["canny:0.8", "segmentation"])
    assert [(strength.kind, strength.scale) for strength in chosen.strengths] == [("canny", 0.8), ("segmentation", 1.0)]
    assert chosen.steps == parameters(profile, []).steps
    assert [strength.kind for strength in parameters(load_profile("tiny"), []).strengths] == ["canny"]
    with pytest.raises(SystemExit, match="segmentation"):
        parameters(load_profile("tiny"), ["segmentation"])
    for wrong, why in (("canny:9", "2"), ("canny:much", "number"), ("edges", "canny")):
        with pytest.raises(SystemExit, match=f"--controls: .*{why}"):
            parameters(profile, [wrong])


def thing(scene: int, arm: str, iou: float, inside: float | None, size: str = "small", label: str = "object") -> Thing:
    return Thing(
        scene=str(scene), arm=arm, field="time", to_value="night", label=label, size=size, share=0.02, iou=iou,
        there=True, recognised=True, shown=scene > 0, inside=inside, seam=1.0 + scene,
    )  # fmt: skip


def test_the_report_counts_by_arm_and_size() -> None:
    things = [thing(0, "none", 0.4, 0.9), thing(1, "none", 0.5, None), thing(2, "none", 0.9, 0.2, size="large")]
    text = report([*things, thing(0, "relit:1", 1.0, 1.0)], OBJECTS.sizes)
    curve, _, scene = text.partition("edit shown in the scene")
    rows = {tuple(line.split()[:3]): line for line in curve.splitlines()}
    assert "0.667 (3; " in rows["none", "all", "0.667"]
    assert "0.500 (2; " in rows["none", "all", "0.667"], "of the two whose edit shows within the mask"
    assert rows["none", ".", "small"].split()[3] == "0.500"
    assert rows["none", ".", "large"].split()[3] == "1.000"
    assert "2.00" in rows["none", "all", "0.667"], "the median seam"
    assert "1.000 (1; " in rows["relit:1", "all", "1.000"]
    assert "all 0.667 (3; " in scene


def test_what_the_oracles_do_not_see_in_the_source_is_not_counted_as_lost() -> None:
    unseen = thing(0, "none", 1.0, None).model_copy(update={"there": False, "recognised": False})
    lost = thing(1, "none", 1.0, None).model_copy(update={"recognised": False})
    text = report([unseen, lost, thing(2, "none", 1.0, None)], OBJECTS.sizes)
    (line,) = [line for line in text.splitlines() if line.startswith("none           all   ")]
    assert [cell.split()[0] for cell in line[40:].split(")")[:3]] == ["1.000", "0.333", "0.500"]


def test_the_report_counts_every_instance_and_each_class_by_itself() -> None:
    people = [thing(0, "none", iou, None, "pedestrians, 20-25 px", "pedestrian") for iou in (0.2, 0.7)]
    text = report([*people, thing(0, "none", 0.9, None, "", "road")], ("pedestrians, 8-19 px", "pedestrians, 20-25 px"))
    assert text.startswith("1 scenes, 3 things")
    rows = {line[15:40].strip(): line[40:].split()[:3] for line in text.splitlines() if line.startswith("none")}
    assert rows["all"][:2] == ["0.667", "(3;"]
    assert rows[". pedestrians, 20-25 px"][:2] == ["0.500", "(2;"]
    assert rows[". pedestrians"][:2] == ["0.500", "(2;"]
    assert rows[". roads"][:2] == ["1.000", "(1;"]
    assert ". pedestrians, 8-19 px" not in rows


@pytest.mark.slow
def test_the_shipped_generator_keeps_shapes_in_another_light() -> None:
    domain = OBJECTS
    gallery = Gallery(load_profile("tiny"), domain)
    edit = next(object_edits(1))
    pictures = list(gallery.draw(edit, ["none", "relit:1"]))
    things = list(judge_images(gallery, domain, edit, pictures))
    assert {(t.arm, t.label) for t in things} == {
        (arm, label) for arm in ("none", "relit:1") for label in domain.protected
    }
    relit = [t for t in things if t.arm == "relit:1"]
    assert all(t.iou >= 0.5 for t in relit)
    assert all(t.inside is None or t.inside >= 0.5 for t in relit)
    assert all(t.shown for t in relit)


def test_records_of_one_setting_are_not_gone_on_with_under_another(tmp_path: Path) -> None:
    for _ in range(2):
        keep_setting(tmp_path / "out", "roads, profile tiny-roads, controls: canny 1")
    with pytest.raises(SystemExit, match="canny 1"):
        keep_setting(tmp_path / "out", "roads, profile tiny-roads, controls: segmentation 1")
