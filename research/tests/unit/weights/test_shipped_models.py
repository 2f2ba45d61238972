"""The oracles are accurate enough on new renders, and processors give the pixels that models were trained on."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoImageProcessor

from research.judges.oracles.objects import ORACLES, is_kept, judge
from research.objects.pictures import render_pair
from research.pictures.augmentation import as_pixel_values
from research.system.folders import ORACLE_WEIGHTS, WEIGHTS
from tinyworld.objects.world import Scene, sample_scene

FRESH = 9_000_000  # final-test scenes from here on appear in no card's figures
SEEING = sorted(
    path.parent
    for folder in (WEIGHTS, ORACLE_WEIGHTS)
    for path in folder.rglob("*processor_config.json")
    if "roads" not in path.parts
)


def fresh_scenes(count: int) -> list[Scene]:
    return [sample_scene("final-test", FRESH + index) for index in range(count)]


def pictures_of(scenes: list[Scene]) -> list[np.ndarray]:
    return [render_pair(scene)[0] for scene in scenes]


@pytest.mark.parametrize("name", ORACLES)
def test_weights_of_oracles_are_half_precision_or_less_and_name_their_command(name: str) -> None:
    folder = ORACLE_WEIGHTS / name
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        kinds = {tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118 - not a dict
    assert kinds <= {"F8_E4M3", "F16", "I64"}
    record = json.loads((folder / "training.json").read_text())
    assert record["command"] in (folder / "README.md").read_text()


def test_oracles_agree_on_the_truth() -> None:
    scenes = fresh_scenes(60)
    judged = judge(pictures_of(scenes))
    floors = {"label": 0.7, "background": 0.85, "weather": 0.9, "time": 0.9, "style": 0.85}
    for factor, floor in floors.items():
        assert (
            np.mean([is_kept(scene, reading, factor) for scene, reading in zip(scenes, judged, strict=True)]) >= floor
        ), factor


@pytest.mark.parametrize("folder", SEEING, ids=lambda folder: folder.name)
def test_image_processors_give_exactly_the_pixels_trained_on(folder: Path) -> None:
    picture = pictures_of(fresh_scenes(1))
    values = AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt").pixel_values
    assert torch.allclose(values, as_pixel_values(np.stack(picture)), atol=1e-6)
