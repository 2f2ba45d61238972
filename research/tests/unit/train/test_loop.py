"""The training loop resumes where it stopped; augmentation keeps pictures valid; demo images are deterministic."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from research.objects.pictures import mirrored_targets, render_pair
from research.pictures.augmentation import LARGEST_SHIFT, shift, vary
from research.train.loop import Recipe, train
from tinyworld.domain.scenes import UNKNOWN, targets
from tinyworld.objects.demo import demo_scenes, write_demo
from tinyworld.objects.world import FACTORS, mirrored, sample_scene, scene_factors


def _train(run: str, steps: list[int], stop_before: int | None = None) -> nn.Linear:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def loss_of(model: nn.Module, step: int) -> Tensor:
        if step == stop_before:
            raise InterruptedError
        steps.append(step)
        x = torch.randn(32, 4)
        loss: Tensor = ((model(x)[:, 0] - x.sum(1)) ** 2).mean()
        return loss

    every = math.inf if stop_before is None else 0.0
    recipe = Recipe(run, math.inf, 64, 0.05, 0.0, warmup_steps=5, ema=0.9, checkpoint_every=every, steps=300)
    train(model, loss_of, recipe)
    return model


def test_training_learns_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps: list[int] = []
    with pytest.raises(InterruptedError):
        _train("line", steps, stop_before=60)
    resumed = _train("line", steps)
    assert steps == list(range(300)), "it goes on where it stopped"
    assert torch.allclose(resumed.weight, torch.ones(1, 4), atol=0.01)  # 2e-6 away, of six seeds
    whole = _train("whole", [])
    assert torch.equal(whole.weight, resumed.weight)
    assert (tmp_path / "runs" / "line" / "checkpoint.pt").exists()


def test_a_budget_is_spent_by_seconds_or_by_steps() -> None:
    assert Recipe("timed", 10.0).spent_share(7, 5.0) == 0.5
    counted = Recipe("counted", 10.0, steps=20)
    assert counted.spent_share(5, 1.0) == 0.25
    assert counted.spent_share(5, 10.0) == 1.0
    assert counted.spent_share(20, 1.0) == 1.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_varied_pictures_stay_pictures(index: int, flip: bool) -> None:
    image = render_pair(sample_scene("calibration", index % 5))[0]
    spoilt = vary(image, np.random.default_rng(index), flip=flip, strength=2.0)
    assert spoilt.shape == image.shape
    assert spoilt.dtype == np.uint8


def test_shifts_move_and_mirror_the_rim() -> None:
    image = render_pair(sample_scene("calibration", 0))[0]
    assert np.array_equal(shift(image, (0, 0)), image)
    down = LARGEST_SHIFT
    assert np.array_equal(shift(image, (down, 0))[down:], image[:-down])


def test_mirroring_a_scene_swaps_left_and_right_only() -> None:
    for index in range(40):
        scene = sample_scene("calibration", index)
        once = torch.tensor(targets(scene_factors(scene), FACTORS))
        assert torch.equal(mirrored_targets(once), torch.tensor(targets(scene_factors(mirrored(scene)), FACTORS)))
    alone = scene.changed(companion="none")
    assert targets(scene_factors(alone), FACTORS)[list(FACTORS).index("relation")] == UNKNOWN


def test_demo_images_are_labelled_balanced_and_always_the_same(tmp_path: Path) -> None:
    first, second = (write_demo(tmp_path / name, ("car", "bus"), 3) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    with first.open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["label"] for row in rows) == ["bus"] * 3 + ["car"] * 3
    for row in rows:
        assert (first.parent / row["file"]).read_bytes() == (second.parent / row["file"]).read_bytes()
        assert row["label"] not in row["file"]


def test_demo_scenes_refuse_unknown_classes() -> None:
    with pytest.raises(ValueError, match="tram"):
        demo_scenes(("car", "tram"), 2)
