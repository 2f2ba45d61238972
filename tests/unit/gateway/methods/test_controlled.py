"""Parameters of control and protection, and the checks of protected regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.jobs.choices import method_defaults, methods_listing, plan
from gateway.methods.controlled import ControlledParameters, HeldShapes, judge_regions
from gateway.methods.counterfactual import Change, Edit, TaskDescription
from gateway.methods.dillema import DillemaParameters
from gateway.methods.text_checks import check_protected
from shared.media.images import encode
from shared.problems import InvalidInput
from shared.profiles.profile import Profile, load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import ProtectedRegion, ProtectionReply, RegionOutcome, Rendering
from shared.schemas.jobs import JobSpec
from tests.support.json_values import value_at

PICTURE = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))
RENDERING = Rendering(prompt="A car.", seed=1)
SHARES = (0.002, 0.03)
TASK = TaskDescription("find what moves")
CAPTION = "A pedestrian crosses the road by day. A red car waits."


def reply(*outcomes: RegionOutcome) -> ProtectionReply:
    regions = [ProtectedRegion(label="pedestrian", share=share, box=(0, 0, 4, 4)) for share in SHARES]
    return ProtectionReply(mask=PICTURE, regions=regions[: len(outcomes)], outcomes=[list(outcomes)])


def outcome(iou: float, outline: float = 4.0, inside: float = 90.0, around: float = 90.0) -> RegionOutcome:
    return RegionOutcome(iou=iou, outline=outline, inside=(inside,) * 3, around=(around,) * 3)


NULL = [outcome(0.9), outcome(0.9)]


def test_all_regions_where_they_were_pass() -> None:
    outcomes = [outcome(0.5), outcome(0.8)]
    verdict, scores, regions = judge_regions(reply(*outcomes), outcomes, NULL, HeldShapes())
    assert verdict.accepted
    assert scores == {"protected": 0.5, "protected_kept": 1.0, "seam": 1.0}
    assert [(region["share"], region["iou"]) for region in regions] == [(0.03, 0.8), (0.002, 0.5)], (
        "by size, the largest first"
    )


def test_one_small_region_that_is_gone_refuses_the_image() -> None:
    outcomes = [outcome(0.1), outcome(0.9)]
    verdict, scores, _ = judge_regions(reply(*outcomes), outcomes, NULL, HeldShapes())
    assert (verdict.accepted, verdict.check, scores["protected_kept"]) == (False, "protected", 0.5)


def test_an_outline_much_sharper_than_the_null_arms_is_a_seam() -> None:
    outcomes = [outcome(0.9, outline=9.0), outcome(0.9)]
    verdict, scores, _ = judge_regions(reply(*outcomes), outcomes, NULL, HeldShapes())
    assert (verdict.check, scores["seam"]) == ("seam", 2.25)
    assert judge_regions(reply(*outcomes), outcomes, NULL, HeldShapes(seam=3))[0].accepted
    faint = [outcome(0.9, outline=0.01), outcome(0.9, outline=0.01)]
    assert judge_regions(reply(*faint), [outcome(0.9, 1.5), outcome(0.9)], faint, HeldShapes(seam=4))[0].accepted


def test_what_keeps_its_daylight_in_the_night_is_refused() -> None:
    relit, pasted = outcome(0.9, inside=50.0, around=30.0), outcome(0.9, inside=88.0, around=30.0)
    verdict, scores, regions = judge_regions(reply(relit, relit), [relit, relit], NULL, HeldShapes())
    assert verdict.accepted
    assert scores["light"] == pytest.approx(40 / 60)
    verdict, scores, regions = judge_regions(reply(pasted, relit), [pasted, relit], NULL, HeldShapes())
    assert verdict.check == "light"
    assert scores["light"] == pytest.approx(2 / 60)
    assert regions[1]["light"] == scores["light"]
    still = outcome(0.9, inside=90.0, around=85.0)
    assert "light" not in judge_regions(reply(still, still), [still, still], NULL, HeldShapes())[1], "no other light"


def test_a_source_without_protected_regions_skips_their_checks() -> None:
    assert judge_regions(reply(), [], [], HeldShapes())[1:] == ({}, [])


@given(
    ious=st.lists(st.floats(0, 1), min_size=2, max_size=2),
    outlines=st.lists(st.floats(0, 50), min_size=2, max_size=2),
    least=st.floats(0, 1),
)
def test_the_verdict_is_that_of_the_worst_region(ious: list[float], outlines: list[float], least: float) -> None:
    outcomes = [outcome(iou, outline) for iou, outline in zip(ious, outlines, strict=True)]
    verdict, scores, _ = judge_regions(reply(*outcomes), outcomes, NULL, HeldShapes(iou=least))
    assert scores["protected"] == min(ious)
    assert verdict.accepted == (min(ious) >= least and max(outlines) / 4 <= 2)


def test_nothing_is_asked_of_the_editor_unless_classes_are_named() -> None:
    plain = DillemaParameters().request(PICTURE, [RENDERING])
    assert plain.protection is None
    assert not {"protection", "controls"} & set(plain.model_dump(mode="json"))
    protection = ControlledParameters(protect=("pedestrian",)).request(PICTURE, [RENDERING]).protection
    assert protection is not None
    assert (protection.classes, protection.by, protection.strength) == (("pedestrian",), "relit", 1.0)
    with pytest.raises(ValidationError, match="names a kind twice"):
        DillemaParameters.model_validate({"controls": [{"kind": "canny"}] * 2})
    both = DillemaParameters.model_validate({"control_scale": 0.5, "controls": [{"kind": "canny", "scale": 0.3}]})
    assert [control.scale for control in both.request(PICTURE, [RENDERING]).controls] == [0.3], (
        "in place of a profile's default"
    )
    with pytest.raises(ValidationError, match="by, strength, iou, seam, light"):
        DillemaParameters.model_validate({"protection": {"threshold": 0.5}})


@pytest.mark.parametrize(
    ("profile", "parameters", "message"),
    [
        ("tiny", {"control": "depth"}, "control by depth"),
        (
            "modern",
            {"controls": [{"kind": "depth"}, {"kind": "segmentation"}]},
            "by segmentation",
        ),
        ("paper", {"controls": [{"kind": "depth"}, {"kind": "segmentation"}], "protect": ["person"]}, ""),
    ],
)
def test_a_job_learns_at_once_what_its_profile_lacks(profile: str, parameters: dict[str, Any], message: str) -> None:
    spec = JobSpec.model_validate(
        {"task": "name the vehicle", "models": [], "methods": [{"name": "dillema", "parameters": parameters}]}
    )
    if message:
        with pytest.raises(InvalidInput, match=message):
            plan(spec, load_profile(profile), [])
    else:
        (method,) = plan(spec, load_profile(profile), []).methods
        assert isinstance(method.parameters, DillemaParameters)
        assert [strength.kind for strength in method.parameters.strengths] == ["depth", "segmentation"]
        assert method.parameters.protect == ("person",)


def test_segmentation_jobs_protect_the_profiles_things_unless_they_say_otherwise() -> None:
    def protected(profile: str, **fields: Any) -> tuple[str, ...]:
        spec = JobSpec.model_validate({"task": "segment the street", "models": [], **fields})
        (method,) = plan(spec, load_profile(profile), []).methods
        assert isinstance(method.parameters, DillemaParameters)
        return method.parameters.protect

    masks = {"masks": {"classes": [{"name": "road", "index": 0}, {"name": "person", "index": 1, "thing": True}]}}
    things = tuple(load_profile("paper").diffusion.keep_labels)
    assert "person" in things
    assert protected("paper", methods=[{"name": "dillema"}], **masks) == things
    assert protected("paper", methods=[{"name": "dillema", "parameters": {"protect": ["car"]}}], **masks) == ("car",)
    assert protected("paper", methods=[{"name": "dillema", "parameters": {"protect": []}}], **masks) == ()
    assert protected("paper", methods=[{"name": "dillema"}]) == (), "the paper's jobs over classifiers hold edges alone"


@pytest.mark.slow
def test_few_steps_are_the_default_unless_a_job_names_others() -> None:
    modern = load_profile("modern")
    assert modern.diffusion.few_step is not None

    def chosen(profile: Profile, **parameters: Any) -> tuple[Any, Any]:
        spec = JobSpec.model_validate(
            {"task": "name the vehicle", "models": [], "methods": [{"name": "dillema", "parameters": parameters}]}
        )
        (method,) = plan(spec, profile, []).methods
        assert isinstance(method.parameters, DillemaParameters)
        return method.parameters.steps, method.parameters.guidance

    assert chosen(modern) == (4, 1.0)
    assert chosen(modern, steps=4) == chosen(modern, guidance=1) == (4, 1.0)
    assert chosen(modern, steps=25) == (25, 6.0), "with the guidance of the base weights, which then render"
    assert chosen(modern, guidance=3.5) == (30, 3.5)
    assert chosen(modern, steps=4, guidance=6) == (4, 6.0)
    few_step = modern.diffusion.few_step.model_copy(update={"default": False})
    other = modern.model_copy(update={"diffusion": modern.diffusion.model_copy(update={"few_step": few_step})})
    assert chosen(other) == (30, 6.0)
    (dillema,) = [method for method in methods_listing(modern).methods if method.name == "dillema"]
    defaults = [value_at(dillema.parameters, "properties", name, "default") for name in ("steps", "guidance")]
    assert defaults == [4, 1.0]
    assert "steps" not in method_defaults("lance", modern), "inversion methods edit with the base weights"


@pytest.mark.parametrize(
    ("old", "new", "label", "refused"),
    [
        ("day", "night", "pedestrian", False),
        ("red", "blue", "pedestrian", False),
        ("A pedestrian", "A dog", "pedestrian", True),
        ("A pedestrian", "A dog", "person", True),  # the segmenter's word is not the caption's
        ("road", "road with children", "pedestrian", True),
        ("red car", "red bus", "vehicle", True),
        ("red car", "red bus", "traffic light", False),
        ("day", "day near traffic lights", "traffic light", True),
    ],
)
def test_an_edit_may_not_name_protected_classes(old: str, new: str, label: str, refused: bool) -> None:
    change = Change("other", old, new, old, new)
    verdict = check_protected(Edit((change,), CAPTION, CAPTION.replace(old, new)), TASK, (label,))
    assert (verdict is not None) == refused
    if verdict is not None:
        assert verdict.check == "protected class"
        assert f"“{label}”" in verdict.reason


def test_a_new_caption_may_neither_lose_nor_bring_in_a_protected_class() -> None:
    change = Change("weather", "day", "night", "day", "night")
    for caption, new, message in [
        (CAPTION, "Something crosses the road by night. A red car waits.", "lost"),
        ("A car by day.", "A car by night. Pedestrians walk.", "brings in"),
    ]:
        verdict = check_protected(Edit((change,), caption, new), TASK, ("pedestrian",))
        assert verdict is not None
        assert message in verdict.reason
    assert check_protected(Edit((change,), CAPTION, CAPTION.replace("day", "night")), TASK, ()) is None
