"""Measuring repairs of segmenters: with the metrics of jobs, on scenes with the right factor values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import SegformerImageProcessorPil

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from gateway.analysis.limits import LEAST_SOURCES
from research.judges.segmentation import class_ious
from research.measure.repair.records import (
    COMMITTED_ROADS,
    MeasuredRoadRepairs,
    RepairedModel,
    best_control,
    committed_roads,
    repaired_plant,
    resume,
    write,
)
from research.measure.repair.roads import (
    FIRST_SCENE,
    FIRST_SOURCE,
    LABELS,
    LEAST_PIXELS,
    PLANTED,
    VALUES,
    evaluate,
    judge_repair,
    models_under_test,
    render_scene,
    renderer_truth,
    spec,
)
from research.networks.segmenters import class_masks, new_road_segmenter
from research.paper_tables.dillema_tables import road_repairs
from shared.profiles.weights import Weights
from shared.schemas.repairs import CONTROLS, TRAINED, Arm, RepairRequest
from tests.support.repair_views import finished_repair
from tinyworld.domain.scenes import scenes_without
from tinyworld.drawing.canvas import Image
from tinyworld.roads.own_distribution import PLANTS, own_distribution
from tinyworld.roads.world import CLASSES, THINGS, Scene

PEDESTRIAN, ROAD = CLASSES.index("pedestrian"), CLASSES.index("road")
NIGHT = PLANTED["road-segmenter-night-pedestrian"]
SCENES = LEAST_SOURCES
TRUTH = renderer_truth(FIRST_SCENE, SCENES, VALUES)


@pytest.mark.parametrize("name", PLANTED)
def test_a_plant_changes_its_label_for_its_value_alone(name: str) -> None:
    plant = PLANTED[name]
    scene = next(candidate for candidate in TRUTH.without(NIGHT) if candidate.surface != "snowy")
    drawing = render_scene(scene)
    with_value = scene.changed(**{plant.field: plant.value})
    assert np.array_equal(PLANTS[name](scene, drawing), drawing.classes)
    spoilt = PLANTS[name](with_value, drawing) != drawing.classes
    assert np.array_equal(spoilt, drawing.classes == CLASSES.index(plant.label))


def test_scenes_want_what_is_lacking_and_hold_the_planted_class() -> None:
    scenes = TRUTH.without(NIGHT)
    assert len(scenes) == SCENES == len({scene.geometry_seed for scene in scenes})
    assert not any(scene.time == "night" or scene.surface == "snowy" for scene in (*scenes, *TRUTH.as_they_are()))
    assert all((render_scene(scene).classes == PEDESTRIAN).sum() >= LEAST_PIXELS for scene in scenes)
    every = renderer_truth(FIRST_SCENE, 40).as_they_are()
    assert any(scene.time == "night" for scene in every), "otherwise they are there"
    assert any(scene.surface == "snowy" for scene in every)
    sources = scenes_without(VALUES, own_distribution, FIRST_SOURCE)
    assert {next(sources).geometry_seed for _ in range(50)}.isdisjoint(
        scene.geometry_seed for scene in (*scenes, *every)
    )


def test_masks_of_the_job_mark_things() -> None:
    job_spec = spec(["a model"], ["weather", "adjective"], 3)
    assert job_spec.masks is not None
    assert job_spec.masks.things == list(THINGS)
    assert [label.name for label in job_spec.masks.classes] == list(LABELS)


class PartlyBlindSegmenter:
    """A segmenter whose answers are known: the truth, but that in so many of ten scenes at night it sees nobody."""

    def __init__(self, blind_at_night: int) -> None:
        self.classes = list(CLASSES)
        self._blind = blind_at_night
        self._masks: dict[bytes, Image] = {}
        for scene, blind in self._scenes():
            drawing = render_scene(scene)
            people = (drawing.classes == PEDESTRIAN) & blind
            self._masks[drawing.image.tobytes()] = np.where(people, ROAD, drawing.classes)

    def _scenes(self) -> Iterator[tuple[Scene, bool]]:
        for number, scene in enumerate(TRUTH.without(NIGHT)):
            yield scene, False
            yield scene.changed(time="night"), number % 10 < self._blind
        for scene in TRUTH.as_they_are():
            yield scene, False

    def run(self, images: Sequence[Image]) -> list[Image]:
        return [self._masks[image.tobytes()] for image in images]


@pytest.fixture(scope="module")
def measured_model() -> RepairedModel:
    models: dict[Arm, PartlyBlindSegmenter] = dict.fromkeys(CONTROLS, PartlyBlindSegmenter(5))
    models |= {"before": PartlyBlindSegmenter(10), "repaired": PartlyBlindSegmenter(0)}
    view = finished_repair()
    return judge_repair("a model", NIGHT, models, TRUTH, view)


def test_ground_truth_gives_the_gain_and_the_cost_of_a_repair(measured_model: RepairedModel) -> None:
    (plant,) = measured_model.plants
    assert (plant.label, plant.value, plant.scenes) == ("pedestrian", "night", SCENES)
    assert (plant.before_as_it_is, plant.before, plant.after["repaired"]) == (1.0, 0.0, 1.0)
    assert plant.true_loss.difference == plant.won.difference == plant.won_back == 1.0
    half_blind = np.mean([number % 10 < 5 for number in range(SCENES)])
    assert plant.over_best_control.difference == pytest.approx(half_blind)
    assert measured_model.own_before == measured_model.own_after["repaired"] == 1.0
    assert measured_model.lost.difference == 0


def test_pixels_and_pedestrians_of_all_scenes_are_counted(measured_model: RepairedModel) -> None:
    own_set, without, with_value = measured_model.figures
    assert {figure.count for figure in measured_model.figures} == {SCENES}
    assert without.arms.keys() == {"before"}
    assert own_set.arms["before"].mean_iou == without.arms["before"].mean_iou == 1.0
    before, repaired = with_value.arms["before"], with_value.arms["repaired"]
    assert (before.iou["pedestrian"], before.iou["sky"], repaired.iou["pedestrian"]) == (0.0, 1.0, 1.0)
    road = before.iou["road"]
    assert road is not None
    assert 0.8 < road < 1.0, "pedestrians that are called road cost it, too"
    assert before.mean_iou < 7 / 8 < repaired.mean_iou == 1.0
    assert before.pedestrians.count == 0 < before.pedestrians.n == repaired.pedestrians.count
    assert 1 < (before.pedestrians.sources or 0) <= SCENES


def test_a_real_segmenter_is_judged_as_the_models_judge_judges(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = new_road_segmenter("segformer")
    model.half().save_pretrained(tmp_path)
    SegformerImageProcessorPil(
        size={"height": 128, "width": 128}, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_reduce_labels=False
    ).save_pretrained(tmp_path)
    scenes = [own_distribution(index, "demo") for index in range(4)]
    drawings = [render_scene(scene) for scene in scenes]
    loaded = ImageSegmenter(Weights(path=tmp_path, licence="", gigabytes=0.01), device="cpu")
    judged = evaluate(loaded, scenes)
    guesses = class_masks(model.float(), [drawing.image for drawing in drawings])
    assert len(np.unique(guesses)) > 1, "an untrained segmenter says several classes"
    expected = class_ious(guesses, np.stack([drawing.classes for drawing in drawings]))
    figures = judged.figures()
    assert {name: iou for name, iou in figures.iou.items() if iou is not None} == pytest.approx(
        {name: iou for name, iou in expected.items() if name != "mean"}, abs=1e-3
    )
    assert figures.mean_iou == pytest.approx(expected["mean"], abs=1e-3)
    alone = class_ious(guesses[:1], drawings[0].classes[None])
    assert judged.overlaps("road")[0] == pytest.approx(alone["road"], abs=1e-3)
    shown = [alone[name] for place, name in enumerate(CLASSES) if place and (drawings[0].classes == place).any()]
    assert judged.overlaps()[0] == pytest.approx(np.mean(shown), abs=1e-3)


def test_loss_and_won_back_of_hand_made_arms() -> None:
    random = np.random.default_rng(0)
    as_it_is = random.uniform(0.7, 0.9, 60)
    before = as_it_is - 0.4
    arms: dict[Arm, np.ndarray] = {"before": before, "repaired": before + 0.3, "originals": before + 0.1}
    arms |= {"null": before, "augmented": before + 0.1}
    plant = repaired_plant("road", "snowy", as_it_is, arms)
    assert plant.true_loss.difference == pytest.approx(0.4)
    assert plant.won.difference == pytest.approx(0.3)
    assert (plant.won_back, plant.won_back_low, plant.won_back_high) == pytest.approx((0.75, 0.75, 0.75))
    assert plant.best_control == best_control(plant.after) == "originals", "the first of those that are equally good"
    assert plant.over_best_control.difference == pytest.approx(0.2)
    same = dict.fromkeys(("before", *TRAINED), as_it_is)
    assert repaired_plant("road", "snowy", as_it_is, same).won_back is None, "where nothing is lost, nothing is won"  # type: ignore[arg-type]


def test_models_come_from_the_profile(tmp_path: Path) -> None:
    name = "road-segmenter-snowy-road"
    tiny = Path("shared/profiles/tiny.toml").read_text()
    profile = tmp_path / "profile.toml"
    profile.write_text(
        f'{tiny}\n[evaluator.models_under_test.{name}]\npath = "mine"\nlicence = ""\ngigabytes = 0.01\n'
        'task = "segmentation"\n'
    )
    assert models_under_test(str(profile), [name])[name].path == (tmp_path / "mine").resolve()
    with pytest.raises(ValueError, match="to the profile"):
        models_under_test("tiny", [name])
    with pytest.raises(ValueError, match="road-segmenter"):
        models_under_test("tiny", ["road-segmenter"])


def measured(models: list[RepairedModel]) -> MeasuredRoadRepairs:
    request = RepairRequest(model="a model")
    return MeasuredRoadRepairs(
        command="by hand", images=7, factors=["weather"], counterfactuals=12, request=request, models=models
    )


def test_tables_show_measured_figures_beside_those_of_the_paper(measured_model: RepairedModel) -> None:
    text = road_repairs([measured([measured_model])])
    assert "85.32 → 88.76" in text
    assert "12 accepted counterfactuals" in text
    assert "| a model | pedestrian, night | 100.0% → 0.0% | 100.0% |" in text
    n = measured_model.figures[2].arms["before"].pedestrians.n
    assert f"| a model | the same, night | {SCENES} | pedestrians found | 0.0% (0/{n}; 0% to " in text
    grids = [[line for line in part.splitlines() if line[:1] == "|"] for part in text.split("\n\n")]
    assert all(len({line.count("|") for line in lines}) == 1 for lines in grids if lines)
    assert road_repairs([]) == ""


def test_an_interrupted_measurement_resumes(measured_model: RepairedModel, tmp_path: Path) -> None:
    path, done = tmp_path / "repair.json", measured([measured_model])
    assert resume(path, measured([])) == measured([])
    write(path, done)
    assert resume(path, measured([])) == done
    assert resume(path, measured([]).model_copy(update={"command": "another"})).models == []


def test_committed_measurements_can_be_read() -> None:
    assert len(committed_roads()) == sum(path.exists() for path in COMMITTED_ROADS)
    for measured in committed_roads():
        assert measured.command in road_repairs([measured])
