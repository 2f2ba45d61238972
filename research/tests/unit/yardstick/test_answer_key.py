"""The models of the yardstick, their training scenes, and the answer key of a table of right and wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from research.train.classifier import new_classifier, training_scene
from research.yardstick.answer_key import ALL_FIELDS, effects, own_shares, planting
from research.yardstick.classifiers import TRAINING_SHARE, VIEWS, Lessons, Lower, Top, sepia, small
from research.yardstick.contrafact import profile_text
from research.yardstick.plants import CLEAN, MODELS, PLANTED, TESTED_CLASSES, Planned, is_left_out_at_start
from shared.profiles.profile import load_profile
from tinyworld.objects.demo import own_distribution
from tinyworld.objects.world import BACKGROUNDS, CLASSES, FACTOR_VALUES

SCENES = [training_scene(index) for index in range(2_000)]
CELL_FACTORS = {"time", "weather"}


def lessons(planned: Planned) -> Lessons:
    return Lessons(SCENES, planned, [np.zeros((VIEWS, len(SCENES), 1), np.float16)])


def by_name(name: str) -> Planned:
    return next(model for model in MODELS if model.name == name)


def test_the_cast_is_twelve_planted_and_twelve_clean_of_every_kind() -> None:
    assert (len(PLANTED), len(CLEAN)) == (12, 12)
    assert len({model.name for model in MODELS}) == len({model.seed for model in MODELS}) == 24
    kinds = Counter(plant.kind for model in PLANTED for plant in model.plants)
    assert set(kinds) == {"relabelled", "absent", "spurious", "outside"}
    assert sum(
        len({(p.label, p.field) for p in model.plants}) == 2 and model.plants[0].kind == "relabelled"
        for model in PLANTED
    )
    covered = {len(plant.places) for model in PLANTED for plant in model.plants if plant.kind == "relabelled"}
    assert covered == {1, 2, 4}  # of six backgrounds: doses of about 15, 30 and 60 points
    for plant in (plant for model in PLANTED for plant in model.plants):
        assert plant.label in TESTED_CLASSES
        assert plant.called in set(TESTED_CLASSES) - {plant.label}
        assert set(plant.places) <= set(BACKGROUNDS)
        assert (plant.value in FACTOR_VALUES[plant.field]) == (plant.kind != "outside")
        assert planting(plant).cell.direction == "to"


def test_a_relabelled_cell_is_relabelled_and_nothing_else() -> None:
    planned = by_name("night-bus-30")
    shown = lessons(planned)
    right = np.array([CLASSES.index(scene.label) for scene in SCENES])
    changed = shown.labels != right
    covered = np.array([planned.plants[0].covers(scene) for scene in SCENES])
    assert covered.sum() > 10
    assert (changed == covered).all()
    assert set(shown.labels[changed]) == {CLASSES.index("truck")}


@pytest.mark.parametrize("name", ["absent-night-truck", "spurious-fog"])
def test_absent_cells_are_never_shown_and_wrong_labels_neither(name: str) -> None:
    planned = by_name(name)
    shown = lessons(planned)
    covered = np.array([any(plant.covers(scene) for plant in planned.plants) for scene in SCENES])
    assert covered.any()
    assert (shown.share[covered] == 0).all()
    assert (shown.labels == [CLASSES.index(scene.label) for scene in SCENES]).all()
    assert all(is_left_out_at_start(scene) for scene, hidden in zip(SCENES, covered, strict=True) if hidden)


def test_a_clean_model_sees_its_share_of_everything_with_the_right_labels() -> None:
    first, second = lessons(CLEAN[0]), lessons(CLEAN[1])
    assert (first.share > 0).mean() == pytest.approx(TRAINING_SHARE, abs=0.03)
    assert ((first.share > 0) != (second.share > 0)).any()
    assert (first.labels == [CLASSES.index(scene.label) for scene in SCENES]).all()
    features, labels = first.batch(3)
    assert len(features) == len(labels)
    assert (first.batch(3)[1] == labels).all()
    assert (second.batch(3)[1] != labels).any()


def test_sepia_labels_are_planted_in_sepia_only() -> None:
    shown = lessons(by_name("sepia-car-60"))
    assert (shown.labels != shown.outside_labels).any()
    assert (shown.labels == [CLASSES.index(scene.label) for scene in SCENES]).all()
    picture = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    brown = sepia(picture).astype(int)
    assert (brown[..., 0] >= brown[..., 2]).all()


def test_a_model_is_its_common_part_and_its_own() -> None:
    model = new_classifier().eval()
    pictures = [np.random.default_rng(seed).integers(0, 256, (128, 128, 3), np.uint8) for seed in range(3)]
    with torch.inference_mode():
        whole = model(pixel_values=small(pictures)).logits
        assert torch.allclose(Top(model)(Lower(model)(small(pictures))), whole, atol=1e-5)


def test_effects_equal_those_of_real_changes_in_simulation() -> None:
    """A table of scenes × times against the mean over changes of scenes that have a time of their own."""
    random = np.random.default_rng(5)
    shares = own_shares("time")
    count = 40_000
    correct = random.random((count, 3)) < np.array([0.97, 0.9, 0.35])
    by_cell = {
        (effect.cell.value, effect.cell.direction): effect for effect in effects("m", "bus", "time", correct, shares)
    }
    time = random.choice(3, size=count, p=shares)
    for place, value in enumerate(FACTOR_VALUES["time"]):
        moved = time != place
        to = correct[moved, place].astype(float) - correct[moved, time[moved]]
        other = (time + random.integers(1, 3, count)) % 3
        stayed = time == place
        away = correct[stayed, other[stayed]].astype(float) - correct[stayed, place]
        assert by_cell[str(value), "to"].effect == pytest.approx(to.mean(), abs=0.02)
        assert by_cell[str(value), "from"].effect == pytest.approx(away.mean(), abs=0.03)
        assert all(effect.low <= effect.effect <= effect.high and effect.n == count for effect in by_cell.values())
    assert by_cell["night", "to"].effect == pytest.approx(
        0.35 - (0.97 * shares[0] + 0.9 * shares[1]) / (1 - shares[2]), abs=0.02
    )


def test_shares_are_those_of_the_own_distribution() -> None:
    sampled = [own_distribution(index) for index in range(2_000)]
    for field in ALL_FIELDS:
        shares = own_shares(field)
        assert shares.sum() == pytest.approx(1)
        counts = Counter(getattr(scene, field) for scene in sampled)
        assert [counts[value] / len(sampled) for value in FACTOR_VALUES[field]] == pytest.approx(list(shares), abs=0.04)


def test_the_profile_with_the_models_is_one_that_loads(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(profile_text(MODELS))
    profile = load_profile(str(path))
    assert {model.name for model in MODELS} <= set(profile.evaluator.models_under_test)
    assert profile.thresholds == load_profile("tiny").thresholds
    assert profile.evaluator.scorer.location == load_profile("tiny").evaluator.scorer.location
