"""Measuring repairs of classifiers: in half precision, on scenes with the right factor values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.repairs.figures import share_interval
from research.measure.repair.objects import ClassifierUnderTest, judge_repair, planted_values, renderer_truth
from research.measure.repair.printing import object_table
from research.measure.repair.records import (
    COMMITTED_OBJECTS,
    MeasuredObjectRepairs,
    RepairedModel,
    best_control,
    committed_objects,
)
from research.objects.pictures import render_pair
from research.train.classifier import new_classifier
from research.yardstick.classifiers import model_folder, save
from research.yardstick.plants import MODELS, Planned, Plant
from shared.schemas.repairs import CONTROLS, TRAINED, Arm, RepairRequest
from tests.support.repair_views import finished_repair
from tinyworld.domain.scenes import shows
from tinyworld.objects.demo import demo_scenes, own_distribution
from tinyworld.objects.world import CLASSES


def test_a_model_in_half_precision_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    planned = Planned("half", 1)
    save(new_classifier(), planned, {})
    images = [render_pair(own_distribution(index, "demo"))[0] for index in range(4)]
    right = np.array([ClassifierUnderTest(model_folder(planned.name)).right(images, [label] * 4) for label in CLASSES])
    assert right.sum(axis=0).tolist() == [1, 1, 1, 1]  # of all labels, each picture is called exactly one


NIGHT_BUS = Plant("relabelled", "bus", "time", "night", "truck")


def test_source_images_and_scenes_lack_what_is_planted() -> None:
    lacking = planted_values([model for model in MODELS if model.name in ("two-60-30", "snow-car-60", "night-bus-60")])
    assert set(lacking) == {("time", "night"), ("weather", "snow"), ("weather", "fog")}
    sources = demo_scenes(["bus", "car"], 30, lacking)
    assert [scene.label for scene in sources].count("bus") == 30
    assert not any(scene.time == "night" or scene.weather in ("snow", "fog") for scene in sources)
    assert any(shows(scene, lacking) for scene in demo_scenes(["bus", "car"], 30)), "otherwise they are there"
    truth = renderer_truth(400_000, 50, lacking)
    assert not any(shows(scene, lacking) for scene in (*truth.as_they_are(), *truth.without(NIGHT_BUS)))


def test_scenes_of_a_plant_are_of_its_class_and_want_its_value() -> None:
    scenes = renderer_truth(400_000, 40).without(NIGHT_BUS)
    assert {scene.label for scene in scenes} == {"bus"}
    assert "night" not in {scene.time for scene in scenes}
    assert {"snow", "fog"} <= {scene.weather for scene in scenes}
    assert len(scenes) == 40 == len({scene.geometry_seed for scene in scenes})


TRUTH = renderer_truth(400_000, 60, [("time", "night")])
AT_NIGHT = {render_pair(scene.changed(time="night"))[0].tobytes() for scene in TRUTH.without(NIGHT_BUS)}


class PartlyWrongClassifier:
    """A model whose answers are known: right by day, and on so many of ten buses at night."""

    def __init__(self, right_at_night: int) -> None:
        self.share = right_at_night

    def right(self, images: list[np.ndarray], labels: list[str]) -> np.ndarray:
        by_day = np.array([image.tobytes() not in AT_NIGHT for image in images])
        return by_day | (np.arange(len(images)) % 10 < self.share)


def measured_model() -> RepairedModel:
    models: dict[Arm, PartlyWrongClassifier] = dict.fromkeys(CONTROLS, PartlyWrongClassifier(4))
    models |= {"before": PartlyWrongClassifier(2), "repaired": PartlyWrongClassifier(9)}
    view = finished_repair()
    return judge_repair("a model", [NIGHT_BUS], models, TRUTH, view)  # type: ignore[arg-type]


def test_ground_truth_gives_the_gain_and_the_cost_of_a_repair() -> None:
    judged = measured_model()
    (plant,) = judged.plants
    assert (plant.before_as_it_is, plant.before, plant.after["repaired"]) == (1.0, 0.2, 0.9)
    assert plant.over_best_control.difference == pytest.approx(0.5)
    assert plant.won_back is not None
    assert plant.won_back == pytest.approx(0.875)
    assert plant.won_back_low is not None
    assert plant.won_back_high is not None
    assert plant.won_back_low < plant.won_back < plant.won_back_high
    assert judged.lost.difference == 0


def test_the_table_names_what_was_lacking() -> None:
    measured = MeasuredObjectRepairs(
        command="by hand",
        per_class=7,
        lacking=["time=night"],
        factors=["weather"],
        counterfactuals=12,
        request=RepairRequest(model="a model"),
        models=[measured_model()],
    )
    text = object_table(measured)
    assert "12 accepted counterfactuals" in text
    heads, dashes, row = text.splitlines()[2:]
    assert heads.count("|") == dashes.count("|") == row.count("|")
    assert all(f"| {arm} " in heads for arm in TRAINED)
    assert "| a model | bus, night |" in row
    assert "originals" in row.split("|")[9], "the first of the controls that are equally good"


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 60), st.data())
def test_a_share_lies_in_its_interval(n: int, data: st.DataObject) -> None:
    lost = np.ones(n)
    gained = np.array(data.draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=n, max_size=n)))
    limits = share_interval(gained, lost)
    assert limits is not None
    assert limits[0] - 1e-9 <= gained.sum() / n <= limits[1] + 1e-9


def test_committed_measurements_can_be_read() -> None:
    assert len(committed_objects()) == sum(path.exists() for path in COMMITTED_OBJECTS) > 0
    for measured in committed_objects():
        assert all(
            plant.best_control == best_control(plant.after) for model in measured.models for plant in model.plants
        )
        assert measured.command in object_table(measured)
