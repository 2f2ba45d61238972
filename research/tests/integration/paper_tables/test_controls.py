"""Kinds of control are compared on the same scenes: every image has a record, and the table a column for each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.paper_tables.controls import DRAWN, ControlRecord, measure, table
from shared.profiles.profile import Profile, load_profile
from tests.support.controlnet_items import weights
from tests.support.small_diffusion import write_depth


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """The shipped one in two steps, with depth by an untrained estimator and the ControlNet of edges."""
    folder = tmp_path_factory.mktemp("depth")
    write_depth(folder)
    shipped = load_profile("tiny-roads")
    controlnets = {**shipped.diffusion.controlnets, "depth": shipped.diffusion.controlnets["canny"]}
    diffusion = shipped.diffusion.model_copy(update={"controlnets": controlnets, "depth": weights(folder)})
    methods = {"dillema": shipped.methods["dillema"] | {"steps": 2}}
    return shipped.model_copy(update={"diffusion": diffusion, "methods": methods})


@pytest.mark.slow
def test_a_scene_is_drawn_under_every_control_and_judged_once(profile: Profile, tmp_path: Path) -> None:
    controls = ("canny", "depth", "canny:0")
    records = measure(profile, controls, 1, tmp_path)
    assert [(record.control, record.arm) for record in records] == [
        (control, arm) for control in (DRAWN, *controls) for arm in ("edit", "null")
    ]
    structure = {(record.control, record.arm): record.structure for record in records}
    assert structure["canny", "null"] > structure["canny:0", "null"], "the edges of the source show where things are"
    assert structure[DRAWN, "null"] > structure["canny", "null"]
    assert (tmp_path / "sheet.png").exists()
    assert measure(profile, controls, 1, tmp_path) == records, "what is done is not drawn again"


def test_the_table_compares_each_control_with_the_first_on_the_same_scenes() -> None:
    def record(scene: int, control: str, structure: float) -> ControlRecord:
        return ControlRecord(
            scene=f"{scene}", field="time", control=control, arm="edit", structure=structure, things=[True, scene > 1],
            margin=0.1, accepted=scene > 1, check="",
        )  # fmt: skip

    scenes = range(4)
    records = [record(scene, DRAWN, 0.9) for scene in scenes] + [record(scene, "canny", 0.5) for scene in scenes]
    records += [record(scene, "segmentation", 0.6 + scene / 100) for scene in scenes]
    text = table(records)
    assert "|  | canny | segmentation | drawn |" in text
    (difference,) = (line for line in text.splitlines() if line.startswith("| … less that of the first"))
    assert difference.startswith("| … less that of the first control, points | – | +11.5 (")
    assert "| things found | 75 % (6/8;" in text
    assert "| accepted, time | 50 % (2/4;" in text
