"""The shapes check with the shipped segmenter of driving scenes: over HTTP, in verdicts, and its calibration."""

from __future__ import annotations

import asyncio
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from evaluator_service.app import create_app
from gateway.methods.checks import judge
from research.calibrate.broken import Trial
from research.calibrate.shapes import CHECKS, ShapeEvaluator, edit_of, shift, trials, with_shape_thresholds
from research.calibrate.thresholds import held_out_scores, thresholds
from research.judges.trials import payload
from shared.media.label_maps import VOID
from shared.profiles.profile import ProfileError, load_profile
from shared.schemas.evaluation import ShapesReply, ShapesRequest
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from tests.support.serving import call, serving
from tests.support.small_evaluator import write_scorer
from tests.support.small_profile import write_profile
from tinyworld.roads.render import Rendering, render
from tinyworld.roads.world import CLASSES, THINGS, Scene, sample_scene

SIDE = 128  # the segmenter's own
SCENES = 24
LIMITS = {"shapes": {"default": 0.75}, "things": {"default": 0.6}}


def scene_of(split: str, index: int) -> Scene:
    """A photo with a bus ahead, the largest of the vehicles."""
    return sample_scene(split, index).changed(style="photo", vehicle="bus")  # type: ignore[arg-type]


def judge_folder() -> Path:
    """The shipped segmenter of the check: trained once, and the same bits on every machine."""
    segmenter = load_profile("tiny-roads").evaluator.segmenter
    assert segmenter is not None
    assert segmenter.path is not None
    return Path(segmenter.path)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    shutil.copytree(judge_folder(), folder / "judge")
    write_scorer(folder / "scorer")
    path = write_profile(folder)
    segmenter = '[evaluator.segmenter]\npath = "judge"\nlicence = "none"\ngigabytes = 0.01\n'
    path.write_text(path.read_text().replace("[defaults]", f"{segmenter}[defaults]"))
    return path


@pytest.fixture(scope="module")
def by_kind(profile: Path) -> dict[str, list[Trial]]:
    every = shape_trials(profile)
    return {kind: [trial for trial in every if trial.kind == kind] for kind in ("good", "shifted", "moved", "gone")}


def shape_trials(profile: Path) -> list[Trial]:
    segmenter = load_profile(str(profile)).evaluator.segmenter
    assert segmenter is not None
    scenes = [scene_of("calibration", index).changed(time="day", weather="clear") for index in range(SCENES)]
    scored, silent = trials(ShapeEvaluator(segmenter), scenes, lambda images: images, SIDE)
    assert silent == 0
    return scored


def accepted(some: list[Trial]) -> float:
    return float(np.mean([judge(trial.scores, trial.edit, LIMITS).accepted for trial in some]))


def test_relit_scenes_pass_and_those_whose_shapes_moved_do_not(by_kind: dict[str, list[Trial]]) -> None:
    relit = [trial for trial in by_kind["good"] if trial.factor == "weather"]
    assert relit
    assert accepted(relit) >= 0.75
    assert accepted(by_kind["good"]) >= 0.85
    assert accepted(by_kind["moved"] + by_kind["shifted"]) <= 0.1
    judged = held_out_scores([trial for some in by_kind.values() for trial in some], CHECKS)
    passed = {kind: np.mean([ok for trial, ok, _ in judged if trial.kind == kind]) for kind in by_kind}
    assert passed["moved"] <= 0.15
    assert passed["shifted"] <= 0.15
    assert passed["gone"] <= 0.3
    assert passed["good"] >= 0.7


def test_refusals_name_the_check_and_say_how_much_is_wanted(by_kind: dict[str, list[Trial]]) -> None:
    verdicts = [judge(trial.scores, trial.edit, LIMITS) for trial in by_kind["moved"] + by_kind["gone"]]
    reasons = {verdict.check: verdict.reason for verdict in verdicts if not verdict.accepted}
    assert "75%" in reasons["shapes"]
    assert "60%" in reasons["things"]


def test_thresholds_are_calibrated_and_written_into_the_profile(profile: Path, by_kind: dict[str, list[Trial]]) -> None:
    every = sorted((trial for some in by_kind.values() for trial in some), key=lambda trial: trial.scene)
    judged = held_out_scores(every, CHECKS)
    good = [passed for trial, passed, _ in judged if trial.kind == "good"]
    broken = [passed for trial, passed, _ in judged if trial.kind != "good"]
    assert np.mean(good) >= 0.7
    assert np.mean(broken) <= 0.2
    text = "[thresholds.old]\ndefault = 0.1\n\n[thresholds.things]\ndefault = 0.9\n\n" + profile.read_text()
    once = with_shape_thresholds(text, every)
    assert with_shape_thresholds(once, every) == once
    data = tomllib.loads(once)
    assert data["thresholds"] == {"old": {"default": 0.1}, **thresholds(every, CHECKS)}
    assert "calibration" not in data


def test_the_evaluator_scores_classes_and_things_and_names_unjudged_ones(profile: Path) -> None:
    day = scene_of("calibration", 12).changed(time="day", weather="clear")
    rendering = render(day, SIDE, SIDE)
    images = [render(day.changed(time="night"), SIDE, SIDE).image, shift(rendering.image, (0, 16))]
    body = ShapesRequest(
        source=payload(rendering.image),
        images=[payload(image) for image in images],
        mask=payload(mask_of(rendering)),
        classes=[*CLASSES[1:], "tram"],
        things=[*THINGS, "tram"],
    )
    reply = ask(profile, body)
    night, moved = reply.outcomes
    assert np.mean(night.classes) > np.mean(moved.classes) + 0.3
    bus = max(range(len(reply.things)), key=lambda place: reply.things[place].share)
    assert reply.things[bus].label == "vehicle"
    assert night.things[bus] >= 0.7
    assert moved.things[bus] <= 0.3
    unknown = [name if name != "vehicle" else "Fahrzeug" for name in body.classes]
    reply = ask(profile, body.model_copy(update={"classes": unknown, "things": ["Fahrzeug"]}))
    assert "Fahrzeug" in reply.unjudged
    assert (reply.things, len(reply.outcomes)) == ([], 2)
    free = ask(profile, body.model_copy(update={"mask": None}))
    assert not free.unjudged
    assert {thing.label for thing in free.things} <= {"vehicle", "pedestrian"}


def test_a_profile_without_a_segmenter_judges_nothing(profile: Path, tmp_path: Path) -> None:
    write_scorer(tmp_path / "scorer")
    image = payload(np.zeros((SIDE, SIDE, 3), np.uint8))
    body = ShapesRequest(source=image, images=[image] * 2, classes=["road"])
    reply = ask(write_profile(tmp_path), body)
    assert (reply.judged, reply.things, [outcome.classes for outcome in reply.outcomes]) == ([], [], [[], []])


def test_the_segmenter_under_test_is_no_judge(profile: Path) -> None:
    tested = 'models_under_test.roads = { path = "judge", licence = "none", gigabytes = 1, task = "segmentation" }\n'
    path = profile.with_name("same.toml")
    path.write_text(profile.read_text().replace("[evaluator]\n", f"[evaluator]\n{tested}"))
    with pytest.raises(ProfileError, match="model under test 'roads'"):
        load_profile(str(path))


def test_the_names_of_the_segmenters_classes_are_part_of_the_revision(profile: Path) -> None:
    def revision(path: Path) -> str:
        async def use() -> str:
            app = create_app(ServiceSettings(profile=str(path), device="cpu", threads=1))
            async with serving(app) as client:
                return str((await client.get("/v1/info")).json()["revision"])

        return asyncio.run(use())

    path = profile.with_name("told.toml")
    path.write_text(profile.read_text().replace("[defaults]", 'names = { tram = ["vehicle"] }\n[defaults]'))
    assert revision(profile) != revision(path)


def ask(profile: Path, body: ShapesRequest) -> ShapesReply:
    async def use() -> ShapesReply:
        app = create_app(ServiceSettings(profile=str(profile), device="cpu", threads=1))
        async with serving(app) as client:
            return await call(client, Services.shapes, body)

    return asyncio.run(use())


def mask_of(rendering: Rendering) -> np.ndarray:
    return np.where(rendering.classes == 0, VOID, rendering.classes - 1).astype(np.uint8)


def test_edits_have_the_factor_of_their_look() -> None:
    assert [edit_of(look).changes[0].factor for look in ("time", "style", "surface")] == [
        "weather",
        "domain",
        "adjective",
    ]
