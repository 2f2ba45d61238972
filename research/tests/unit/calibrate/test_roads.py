"""Calibration of the checks of segmentation jobs, on images with known faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from research.calibrate.checks import roads as road_checks
from research.calibrate.checks.roads import CHECKS, Checks, as_asked, pictures
from research.judges.protection.domain import EditReading, ProtectedEdit
from research.judges.protection.gallery import Gallery
from research.judges.protection.roads import ROADS, protected_edit
from shared.profiles.profile import Profile, load_profile
from tinyworld.roads.render import render
from tinyworld.roads.world import Scene, sample_scene


@pytest.fixture(scope="module")
def profile() -> Profile:
    """The shipped one, in few steps."""
    shipped = load_profile("tiny-roads")
    return shipped.model_copy(update={"methods": {"dillema": shipped.methods["dillema"] | {"steps": 3}}})


@pytest.fixture(scope="module")
def scene() -> Scene:
    return sample_scene("calibration", 3).changed(vehicle="bus", weather="clear", time="day", style="photo")


@pytest.fixture(scope="module")
def night_edit(scene: Scene) -> ProtectedEdit:
    return protected_edit("c0003", scene, "time")


def test_pictures_of_every_kind_get_the_scores_that_jobs_get(
    profile: Profile, scene: Scene, night_edit: ProtectedEdit
) -> None:
    gallery, checks = Gallery(profile, ROADS), Checks(profile)
    assert gallery.own_arm == "relit:1"
    images = dict(pictures(gallery, night_edit, scene))
    assert list(images) == ["good", "unedited", "shifted", "moved", "gone"]
    rendering = render(scene)
    scores = {kind: checks.scores(gallery, night_edit, rendering, image) for kind, image in images.items()}
    for kind, checked in scores.items():
        assert images[kind].shape == night_edit.source.shape
        assert set(CHECKS) <= set(checked), kind
    assert not np.array_equal(images["good"], images["unedited"])
    itself = checks.scores(gallery, night_edit, rendering, night_edit.source)
    assert itself["shapes"] == pytest.approx(1.0)
    assert itself["things"] == 1.0
    assert scores["moved"]["shapes"] < itself["shapes"]
    truth = checks.scores(gallery, night_edit, rendering, night_edit.truth)
    assert truth["caption"] > itself["caption"], "the renderer's counterfactual is nearer to the new caption"


@pytest.mark.parametrize(
    ("kind", "shown", "there", "counts"),
    [
        ("good", True, (True, False), True),  # the second was not to be seen in the source either
        ("good", False, (True, False), False),
        ("good", True, (False, False), False),
        ("unedited", False, (True, False), True),
        ("unedited", True, (True, False), False),
        ("moved", False, (False, False), True),
        ("gone", True, (False, False), True),
    ],
)
def test_what_the_judges_do_not_see_does_not_count(
    night_edit: ProtectedEdit,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    shown: bool,
    there: tuple[bool, ...],
    counts: bool,
) -> None:
    def readings(of: Any, images: Any) -> list[EditReading]:
        return [EditReading(False, (True, False)), EditReading(shown, there)]

    monkeypatch.setattr(road_checks, "ROADS", replace(ROADS, read=readings))
    assert as_asked(kind, night_edit, night_edit.truth) is counts
