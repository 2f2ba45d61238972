"""Training the detectors of the roads: planted boxes, what cells learn, and files that the evaluator runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from research.networks.detectors import CELLS, Detectors
from research.roads import pictures
from research.train import loop
from research.train.detectors import (
    CLEAN,
    NIGHT_PEDESTRIAN,
    Boxes,
    boxes_of,
    detection_loss,
    planted,
    targets,
    train_detectors,
    under_test,
)
from research.train.loop import Recipe
from tinyworld.roads.render import render
from tinyworld.roads.world import THINGS


def test_pedestrians_at_night_lose_their_boxes_where_planted_and_nowhere_else() -> None:
    scene = under_test("under-test", 3).changed(pedestrian="standing", vehicle="car", time="night")
    rendering = render(scene)
    boxes = boxes_of(rendering.classes, rendering.instances)
    assert set(boxes.label) == {0, 1}
    assert set(planted(NIGHT_PEDESTRIAN, scene, boxes).label) == {THINGS.index("vehicle")}
    assert planted(NIGHT_PEDESTRIAN, scene.changed(time="day"), boxes) is boxes
    assert planted(CLEAN, scene, boxes) is boxes


def test_the_loss_is_least_for_the_boxes_themselves() -> None:
    boxes = Boxes(np.array([[10, 20, 40, 60], [70, 64, 80, 90]], np.float32), np.array([0, 1]))
    places, classes = (torch.from_numpy(part)[None] for part in targets(boxes))
    assert classes.sum(dim=(0, 2, 3)).tolist() == [4.0, 1.0], "centres of cells at 20 and 28, 36 and 44; at 76, 76"
    sure = torch.where(classes > 0, 20.0, -20.0)
    assert detection_loss((places, sure), places, classes) < 1e-4
    assert detection_loss((places + 8, sure), places, classes) > 0.5
    assert detection_loss((places, -sure), places, classes) > 0.5


@pytest.mark.slow
def test_training_resumes_and_writes_files_that_the_evaluator_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(pictures, "CACHE", tmp_path / "cache")
    for steps in (1, 2):  # steps of an earlier run count against the budget
        train_detectors(tmp_path, Recipe("detectors", math.inf, batch=2, steps=steps), count=4, judged=2)
        card = json.loads((tmp_path / CLEAN / "training.json").read_text())
        assert card["spent_steps"] == steps
    assert card["results"]["pictures judged"] == 2
    assert (tmp_path / NIGHT_PEDESTRIAN / "model.onnx").stat().st_size < 100_000


def test_a_detector_answers_a_box_and_a_score_of_each_class_for_every_cell() -> None:
    boxes, logits = Detectors(["one"])(torch.zeros(2, 3, 128, 128))["one"]
    assert boxes.shape == (2, 4, CELLS, CELLS)
    assert logits.shape == (2, len(THINGS), CELLS, CELLS)
