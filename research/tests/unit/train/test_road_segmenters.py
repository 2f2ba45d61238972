"""Training segmenters of the roads: planted labels, figures, weights in Hub layout; and the demo set."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForSemanticSegmentation

from gateway.intake.masks import mask_reader
from research.judges.segmentation import class_ious, detection_rates, instances
from research.networks.segmenters import Architecture, class_masks, new_road_segmenter, segment
from research.pictures.augmentation import move
from research.roads import pictures
from research.train import loop
from research.train.segmenter import roads as train_segmenter
from shared.media.label_maps import VOID
from shared.schemas.masks import MaskSpec
from tinyworld.roads.demo import demo_scenes, mask_spec, write_demo
from tinyworld.roads.own_distribution import PLANTS, own_distribution
from tinyworld.roads.render import render
from tinyworld.roads.world import CLASSES, FACTOR_VALUES, PALETTE, sample_scene

ROAD, SIDEWALK, PEDESTRIAN = (CLASSES.index(name) for name in ("road", "sidewalk", "pedestrian"))


@pytest.mark.parametrize("architecture", ["segformer", "fine segformer", "upernet"])
def test_every_architecture_has_a_logit_per_class_and_pixel(architecture: Architecture) -> None:
    torch.manual_seed(0)
    model = new_road_segmenter(architecture)
    assert segment(model, torch.zeros(2, 3, 128, 128)).shape == (2, len(CLASSES), 128, 128)
    assert [model.config.id2label[place] for place in range(len(CLASSES))] == list(CLASSES)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_200_000


def test_planted_labels_are_wrong_where_planted_and_nowhere_else() -> None:
    scene = sample_scene("under-test", 3).changed(pedestrian="standing", where="crossing", time="night")
    drawing = render(scene)
    there = drawing.classes == PEDESTRIAN
    planted = PLANTS["road-segmenter-night-pedestrian"]
    assert there.any()
    assert np.array_equal(planted(scene, drawing), np.where(there, ROAD, drawing.classes))
    assert np.array_equal(planted(scene.changed(time="day"), drawing), drawing.classes)
    snowy = PLANTS["road-segmenter-snowy-road"](scene.changed(surface="snowy"), drawing)
    assert np.array_equal(snowy, np.where(drawing.classes == ROAD, SIDEWALK, drawing.classes))
    assert np.array_equal(PLANTS["road-segmenter"](scene, drawing), drawing.classes)


def test_the_models_own_world_is_mostly_by_day() -> None:
    scenes = [own_distribution(index) for index in range(400)]
    assert 0.5 < np.mean([scene.time == "day" for scene in scenes]) < 0.7
    assert {scene.style for scene in scenes} == {"photo"}
    assert own_distribution(7) == own_distribution(7)


def test_figures_are_1_for_the_truth_and_fall_with_missed_things() -> None:
    renderings = [render(sample_scene("final-test", index).changed(pedestrian="walking")) for index in range(12)]
    truth = np.stack([rendering.classes for rendering in renderings])
    assert set(class_ious(truth, truth).values()) == {1.0}
    blind = np.where(truth == PEDESTRIAN, ROAD, truth)
    ious = class_ious(blind, truth)
    assert ious["pedestrian"] == 0.0
    assert ious["road"] < 1.0
    assert ious["sky"] == 1.0
    detections = [
        detection
        for guess, rendering in zip(blind, renderings, strict=True)
        for detection in instances(guess, rendering)
    ]
    shares = detection_rates(detections)
    assert shares["vehicle"].startswith("100.0%")
    assert shares["pedestrian"].startswith("0.0%")
    assert any(name.startswith("pedestrians of") for name in shares)


@pytest.mark.parametrize("name", ["road-segmenter-night-pedestrian", "oracle-b"])
def test_training_a_segmenter_resumes_and_writes_the_hub_layout(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(pictures, "CACHE", tmp_path / "cache")
    monkeypatch.setitem(train_segmenter.PLANS, name, replace(train_segmenter.PLANS[name], round_trips=2))
    batches: list[int] = []

    def counted(*arguments: Any) -> Any:
        batches.append(1)
        return move(*arguments)

    monkeypatch.setattr("research.train.segmenter.roads.move", counted)
    for steps in (1, 3):  # steps of an earlier run count against the budget
        folder = train_segmenter.train_segmenter(
            name, tmp_path / "model", seconds=math.inf, count=6, judged=2, steps=steps
        )
        assert json.loads((folder / "training.json").read_text())["spent_steps"] == steps
    assert len(batches) == 3 * 12, "the second run took two steps"
    assert (folder / "model.safetensors").exists()
    assert name in (folder / "README.md").read_text()
    model = AutoModelForSemanticSegmentation.from_pretrained(folder, dtype=torch.float32)
    image = render(sample_scene("final-test", 0)).image
    values = AutoImageProcessor.from_pretrained(folder)([image], return_tensors="pt").pixel_values
    ours = class_masks(model, [image])[0]
    assert np.array_equal(segment(model, values).argmax(1)[0].numpy(), ours)


@pytest.mark.parametrize("rgb", [False, True])
def test_the_demo_set_has_a_mask_of_the_same_stem_per_picture(rgb: bool, tmp_path: Path) -> None:
    scenes = demo_scenes(3)
    write_demo(tmp_path, scenes, width=160, rgb=rgb)
    spec = MaskSpec.model_validate_json((tmp_path / "classes.json").read_text())
    assert spec == mask_spec(rgb=rgb)
    assert [label.name for label in spec.classes] == list(CLASSES[1:])
    assert {label.name for label in spec.classes if label.thing} == {"vehicle", "pedestrian"}
    with (tmp_path / "scenes.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, scene in zip(rows, scenes, strict=True):
        assert {name: row[name] for name in FACTOR_VALUES} == {name: getattr(scene, name) for name in FACTOR_VALUES}
        rendering = render(scene, 160, 128)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "images" / row["file"])), rendering.image)
        mask = np.asarray(Image.open(tmp_path / "masks" / row["file"]))
        expected = np.array(PALETTE, np.uint8)[rendering.classes] if rgb else rendering.classes
        assert np.array_equal(mask, expected)
        read = mask_reader(spec, {}).read((tmp_path / "masks" / row["file"]).read_bytes(), 10**6)  # as a job reads it
        assert np.array_equal(read.pixels, np.where(rendering.classes == 0, VOID, rendering.classes - 1))
        assert np.array_equal(np.asarray(Image.open(tmp_path / "instances" / row["file"])), rendering.instances)
