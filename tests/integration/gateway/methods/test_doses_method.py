"""Doses: the requests of each dose and of the edit undone, and their rows; the services are small."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from pydantic import ValidationError

from gateway.methods.counterfactual import MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.doses import DosesParameters, doses
from gateway.methods.instruct import SHAM_INSTRUCTION
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from tests.support.logged_requests import LoggedServices
from tests.support.small_services import CAPTION, CLASSES

PNG = encode(np.full((32, 32, 3), 128, np.uint8))
DIGEST = hashlib.sha256(PNG).hexdigest()
SOURCE = MethodImage(f"{DIGEST}/0", ImagePayload(png=PNG), "car")
TASK = TaskDescription("name the vehicle", tuple(CLASSES))
NEW = CAPTION.replace("sunny", "rainy")
EDIT: dict[str, object] = {
    "source": DIGEST,
    "factor": "weather",
    "from_phrase": "sunny",
    "to_phrase": "rainy",
    "to_value": "rain",
    "caption": CAPTION,
    "new_caption": NEW,
    "seed": 7,
    "region": "structure",
    "self_fraction": 0.6,
}


def parameters_of(parameter: str, editor: str, edits: object = None, **editor_parameters: object) -> DosesParameters:
    editor_parameters = {"steps": 4, **editor_parameters}
    values = {
        "method": "dillema",
        "parameter": parameter,
        "doses": [0.5, 1, 1.5],
        "edits": edits or [EDIT],
        editor: editor_parameters,
    }
    return DosesParameters.model_validate(values)


def rows_of(services: LoggedServices, parameters: DosesParameters) -> list[MethodCounterfactual]:
    return list(doses(SOURCE, TASK, services, parameters, 1))


def test_each_dose_has_its_own_null_arm_and_the_image_at_full_dose_is_edited_back(services: LoggedServices) -> None:
    rows = rows_of(services, parameters_of("guidance", "controlled", guidance=6))
    *dosed, undone = services.renders
    assert [request.guidance for request in dosed] == [3, 6, 9]
    for request in dosed:
        assert request.source.png == PNG
        assert [(r.prompt, r.seed, r.region) for r in request.renderings] == [
            (NEW, 7, "structure"),
            (CAPTION, 7, "structure"),
        ], "the null arm differs in the caption alone"
    assert [(row.ordinal, row.arm, row.null_ordinal) for row in rows] == [
        (0, "edit", 1),
        (1, "null", None),
        (2, "edit", 3),
        (3, "null", None),
        (4, "edit", 5),
        (5, "null", None),
        (6, "edit", None),
    ]
    full = rows[2].image
    assert full is not None
    assert (undone.source.png, undone.guidance, undone.renderings[0].prompt) == (full.png, 6, CAPTION)
    assert undone.renderings[0].region == "structure"
    assert undone.renderings[0].seed == rows[6].seed != 7, "from its own noise a picture is copied with a halo"
    values = [row.edit.changes[0].to_value for row in rows if row.edit]
    assert values == ["rain (dose 0.5)", "rain (dose 1)", "rain (dose 1.5)", "rain (undone)"]
    assert [row.edit.changes[0].from_value for row in rows if row.edit] == [""] * 4
    assert [row.lineage["dose"] for row in rows if row.arm == "edit"] == [
        {"parameter": "guidance", "dose": 0.5, "value": 3.0, "undone": False},
        {"parameter": "guidance", "dose": 1.0, "value": 6.0, "undone": False},
        {"parameter": "guidance", "dose": 1.5, "value": 9.0, "undone": False},
        {"parameter": "guidance", "dose": 1.0, "value": 6.0, "undone": True},
    ]


def test_a_weaker_control_is_a_stronger_dose(services: LoggedServices) -> None:
    rows_of(services, parameters_of("control_scale", "controlled", control_scale=0.9))
    scales = [request.control_scale for request in services.renders]
    assert scales == pytest.approx([1.8, 0.9, 0.6, 0.9])


def test_several_controls_are_dosed_together(services: LoggedServices) -> None:
    controls = [{"kind": "canny", "scale": 0.6}, {"kind": "depth", "scale": 0.3}]
    rows_of(services, parameters_of("control_scale", "controlled", controls=controls))
    first, full, *_ = services.renders
    assert [control.scale for control in first.controls] == pytest.approx([1.2, 0.6])
    assert [control.scale for control in full.controls] == pytest.approx([0.6, 0.3])


def test_inverted_edits_have_a_sham_arm_at_each_dose(services: LoggedServices) -> None:
    rows = rows_of(services, parameters_of("guidance", "inverted", guidance=4))
    *dosed, undone = services.edits
    assert [request.guidance for request in dosed] == [2, 4, 6]
    assert {tuple(request.self_fractions) for request in dosed} == {(0.6,)}
    assert all(len(request.edits) == 3 for request in dosed), "the edit, its null arm and its sham arm"
    assert [row.arm for row in rows] == ["edit", "null", "sham"] * 3 + ["edit"]
    assert [(row.null_ordinal, row.sham_ordinal) for row in rows if row.arm == "edit"] == [
        (1, 2),
        (4, 5),
        (7, 8),
        (None, None),
    ], "the edit undone is compared with the source image"
    assert (undone.caption, undone.edits[0].prompt) == (NEW, CAPTION)
    assert len(undone.edits) == 2


def test_the_self_attention_fraction_goes_down_with_the_dose(services: LoggedServices) -> None:
    rows = rows_of(services, parameters_of("self_fraction", "inverted", reference="null"))
    fractions = [request.self_fractions[0] for request in services.edits]
    assert fractions == pytest.approx([0.8, 0.6, 0.4, 0.6])
    assert len({request.guidance for request in services.edits}) == 1
    assert [row.lineage["dose"]["value"] for row in rows if row.arm == "edit"] == pytest.approx([0.8, 0.6, 0.4, 0.6])


def test_a_dose_that_does_not_show_the_edit_counts_and_an_undone_edit_must_show_it(services: LoggedServices) -> None:
    """The small scorer sees no difference between captions: a margin of 0."""
    rows = rows_of(services, parameters_of("guidance", "controlled", thresholds={"caption": {"default": 0.1}}))
    dosed = [row for row in rows if row.arm == "edit"]
    assert [row.verdict.accepted for row in dosed] == [True, True, True, False]
    assert dosed[-1].verdict.check == "caption"


def test_an_edit_whose_image_lost_the_class_is_not_undone(services: LoggedServices) -> None:
    rows = rows_of(services, parameters_of("guidance", "controlled", thresholds={"label": {"default": 0.9}}))
    assert [(row.verdict.accepted, row.verdict.check) for row in rows if row.arm == "edit"] == [(False, "label")] * 3


def test_several_edits_of_an_image_are_numbered_on_and_those_of_other_images_are_left_out(
    services: LoggedServices,
) -> None:
    edits = [EDIT, {**EDIT, "source": "0" * 64}, {**EDIT, "to_value": "", "from_value": "sun", "seed": 8}]
    rows = rows_of(services, parameters_of("guidance", "controlled", edits, guidance=6))
    assert [row.ordinal for row in rows] == list(range(14))
    assert [row.null_ordinal for row in rows if row.arm == "edit"] == [1, 3, 5, None, 8, 10, 12, None]
    assert [row.seed for row in rows if not row.lineage["dose"]["undone"]] == [7] * 6 + [8] * 6


INSTRUCTED = {**EDIT, "instruction": "Make it rain."}


def test_instructed_edits_are_dosed_by_guidance_and_undone_by_the_opposite_instruction(
    services: LoggedServices,
) -> None:
    parameters = parameters_of("guidance", "instructed", [INSTRUCTED], guidance=6, sham_instruction="Stay.")
    rows = rows_of(services, parameters)
    *dosed, undone = services.instructed
    assert [(request.guidance, request.image_guidance) for request in dosed] == [(3, 1.5), (6, 1.5), (9, 1.5)]
    for request in dosed:
        assert request.source.png == PNG
        assert [(edit.instruction, edit.seed) for edit in request.edits] == [("Make it rain.", 7), ("Stay.", 7)]
    full = next(row.image for row in rows if row.lineage.get("dose", {}).get("dose") == 1 and row.arm == "edit")
    assert full is not None
    assert undone.source.png == full.png
    assert (undone.guidance, undone.edits[0].instruction) == (6, "Change rainy to sunny.")
    assert {edit.seed for edit in undone.edits} == {rows[6].seed}
    assert rows[6].seed != 7
    assert [(row.arm, row.null_ordinal) for row in rows] == [
        *[("edit", 1), ("null", None), ("edit", 3), ("null", None), ("edit", 5), ("null", None)],
        ("edit", None),
    ], "the edit undone is compared with the source image"
    assert [row.edit.changes[0].to_value for row in rows if row.edit] == [
        "rain (dose 0.5)",
        "rain (dose 1)",
        "rain (dose 1.5)",
        "rain (undone)",
    ]


def test_the_image_guidance_goes_down_with_the_dose(services: LoggedServices) -> None:
    parameters = parameters_of("image_guidance", "instructed", [INSTRUCTED], image_guidance=1.8)
    rows = rows_of(services, parameters)
    assert [request.image_guidance for request in services.instructed] == pytest.approx([3.6, 1.8, 1.2, 1.8])
    assert {request.guidance for request in services.instructed} == {7.5}
    values = [row.lineage["dose"]["value"] for row in rows if row.arm == "edit"]
    assert values == pytest.approx([3.6, 1.8, 1.2, 1.8])


def test_the_wording_of_an_instruction_says_its_degree(services: LoggedServices) -> None:
    rows = rows_of(services, parameters_of("wording", "instructed", [INSTRUCTED]))
    instructions = [request.edits[0].instruction for request in services.instructed]
    assert instructions == [
        "Make it rain. Make this change only slightly.",
        "Make it rain.",
        "Make it rain. Make this change strongly.",
        "Change rainy to sunny.",
    ]
    assert len({(request.guidance, request.image_guidance) for request in services.instructed}) == 1
    assert {request.edits[1].instruction for request in services.instructed} == {SHAM_INSTRUCTION}
    recorded = [row.lineage["instruction"] for row in rows if row.arm == "edit"]
    assert recorded == instructions


def test_what_an_instruction_added_is_removed(services: LoggedServices) -> None:
    added = {**INSTRUCTED, "from_phrase": "", "to_phrase": "snow on the road"}
    rows_of(services, parameters_of("guidance", "instructed", [added]))
    assert services.instructed[-1].edits[0].instruction == "Remove snow on the road."


@pytest.mark.parametrize(
    ("doses_", "instruction", "words"),
    [([0.25, 1], "Make it rain.", "no words for a dose of 0.25"), ([1, 2], "rain " * 95, "over 500 characters")],
)
def test_a_degree_without_words_or_room_is_refused(doses_: list[float], instruction: str, words: str) -> None:
    values = {"method": "instruct", "parameter": "wording", "doses": doses_, "instructed": {}}
    with pytest.raises(ValidationError, match=words):
        DosesParameters.model_validate({**values, "edits": [{**EDIT, "instruction": instruction}]})


@pytest.mark.parametrize(
    ("parameter", "editor", "editor_parameters", "words"),
    [
        ("self_fraction", "controlled", {}, "no self_fraction"),
        ("control_scale", "inverted", {}, "no control_scale"),
        ("guidance", "controlled", {"guidance": 1.5}, "1 … 30"),
        ("control_scale", "controlled", {"control_scale": 1.5}, "0 … 2"),
        ("self_fraction", "instructed", {}, "no self_fraction; dose guidance or image_guidance or wording"),
        ("wording", "controlled", {}, "no wording"),
        ("guidance", "instructed", {"guidance": 1.5}, "1 … 30"),
    ],
)
def test_a_dose_that_the_editor_does_not_have_is_refused(
    parameter: str, editor: str, editor_parameters: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        parameters_of(parameter, editor, **editor_parameters)


@pytest.mark.parametrize("values", [[0.5, 1.5], [1, 0.5], [1, 1], [1]])
def test_doses_rise_and_contain_the_full_one(values: list[float]) -> None:
    with pytest.raises(ValidationError):
        DosesParameters.model_validate(
            {
                "method": "dillema",
                "parameter": "guidance",
                "doses": values,
                "edits": [EDIT],
                "controlled": {"guidance": 6},
            }
        )
