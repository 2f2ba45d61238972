"""Measuring the editor that follows instructions: records of both arms with the shipped judges, and the goals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gateway.methods.dillema import DillemaParameters
from research.judges.editors import EDITORS, parameters_of
from research.judges.records import Record
from research.judges.trials import Studio
from research.measure.counterfactuals import FIRST, Measurement, edits_in_turn
from research.measure.instruct.objects import dillema_evaluations, draw_by_instruction, goal_lines, instruction_of
from research.networks.instructed_unet import add_lora, few_step_unet, save_editor
from research.system.folders import weights_of
from research.train.instructed_editor import InstructedEditor
from shared.profiles.profile import Profile, load_profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("tiny")


@pytest.fixture(scope="module")
def parameters(profile: Profile) -> DillemaParameters:
    return DillemaParameters.model_validate(parameters_of(EDITORS["dillema"], profile))


@pytest.fixture(scope="module")
def rows(
    profile: Profile, parameters: DillemaParameters, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Record]]:
    """One edit and its null arm by an editor that is not trained."""
    folder = tmp_path_factory.mktemp("instructed")
    torch.manual_seed(0)
    unet = few_step_unet(weights_of("objects") / "diffusion")
    add_lora(unet, 5)
    save_editor(unet, folder, {"steps": 1})
    draw = draw_by_instruction(InstructedEditor.load(folder, "objects"), Studio(profile, parameters), "phrases too")
    return folder, Measurement("instruct", profile, draw, folder).batch(0, list(edits_in_turn(FIRST, 1, ("time",))))


def test_both_arms_are_drawn_checked_and_judged(rows: tuple[Path, list[Record]]) -> None:
    folder, records = rows
    assert [(record.arm, record.field, record.evaluations) for record in records] == [
        ("edit", "time", 1),
        ("null", "time", 1),
    ]
    assert all((folder / record.image).exists() and record.method == "instruct" for record in records)
    assert {"structure", "label"} <= set(records[0].scores)


def test_an_instruction_is_the_same_in_every_run() -> None:
    (first,), (again,) = (list(edits_in_turn(FIRST, 1, ("colour",))) for _ in range(2))
    assert instruction_of(first, "nothing") == instruction_of(again, "nothing")


def test_goals_count_the_accepted_edits_only(rows: tuple[Path, list[Record]], profile: Profile) -> None:
    edit = rows[1][0].model_copy(update={"accepted": True, "kept": True, "shown": True, "others": ()})
    lost = edit.model_copy(update={"kept": False, "shown": False})
    refused = lost.model_copy(update={"accepted": False})
    null = lost.model_copy(update={"arm": "null"})
    kept_line, shown_line, others_line, *costs = goal_lines(
        [edit] * 19 + [lost, refused, null], 4, {"base": 32, "few-step": 4}
    )
    assert "19 of 20" in kept_line
    assert kept_line.endswith("not met")
    assert "19 of 20" in shown_line
    assert shown_line.endswith(": met")
    assert "20 of 20" in others_line
    assert [line.endswith("not met") for line in costs] == [False, True]


def test_nothing_accepted_meets_no_goal() -> None:
    assert all(line.endswith("not met") for line in list(goal_lines([], 4, {}))[:3])


def test_dillema_s_evaluations_are_those_of_the_profile(profile: Profile) -> None:
    assert dillema_evaluations(profile) == {"base weights": 32, "few-step weights": 4}
