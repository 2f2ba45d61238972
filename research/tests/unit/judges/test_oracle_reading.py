"""Oracles: how they read features by position, their training targets, and the failures labelled `none`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from research.datasets.degradations import SUFFERED, apply_degradations, random_fields
from research.datasets.failures import KINDS, failure
from research.datasets.oracle_pictures import OraclePictures
from research.judges.oracles.objects import (
    LOGITS,
    NO_OBJECT,
    ORACLES,
    PLACES,
    READ,
    logits_at_places,
    object_places,
    places_touched,
    pool,
    targets_with_none,
)
from research.networks.factor_heads import split_factors
from research.networks.oracles import new_oracle
from research.objects.pictures import Pictures, render_pair
from research.pictures.augmentation import as_pixel_values
from research.train.oracle import objects as oracle
from research.train.oracle.objects import loss, parts_at_places
from tinyworld.domain.scenes import UNKNOWN
from tinyworld.objects.world import FACTORS, sample_scene


def place_of(factor: str, value: str) -> int:
    return LOGITS.index(f"{factor}={value}")


def test_an_oracle_reads_the_object_only_where_it_is() -> None:
    located = torch.zeros(1, len(LOGITS), PLACES, PLACES)
    located[:, place_of("label", "none")] = 10
    located[:, place_of("colour", "green")] = 5  # of the meadow
    located[:, place_of("label", "none"), 3, 3] = 0
    located[:, place_of("label", "bus"), 3, 3] = 10
    located[:, place_of("colour", "green"), 3, 3] = 0
    located[:, place_of("colour", "red"), 3, 3] = 5
    read = {
        name: values[int(logits.argmax())] for (name, values), logits in zip(READ.items(), pool(located), strict=True)
    }
    assert (read["label"], read["colour"]) == ("bus", "red")
    assert object_places(located).argmax() == 3 * PLACES + 3


def test_a_picture_without_an_object_reads_as_none() -> None:
    located = torch.zeros(1, len(LOGITS), PLACES, PLACES)
    located[:, place_of("label", "none")] = 10
    assert pool(located)[0].argmax() == NO_OBJECT[0]


@pytest.mark.parametrize("name", ORACLES)
def test_oracles_can_overfit_a_few_pictures(name: str) -> None:
    torch.manual_seed(0)
    model = new_oracle("resnet" if name == "oracle-a" else "regnet", LOGITS).train()
    scenes = [sample_scene("oracle-a", index) for index in range(6)]
    pairs = [render_pair(scene) for scene in scenes]
    expected = torch.stack([targets_with_none(scene) for scene in scenes])
    values = as_pixel_values(np.stack([image for image, _ in pairs]))
    parts = parts_at_places(np.stack([mask for _, mask in pairs]), expected)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(12):
        value = loss(logits_at_places(model, values), parts, expected)
        optimiser.zero_grad()
        torch.autograd.backward(value)
        optimiser.step()
        losses.append(value.item())
    # Seen with seeds 0 and 1, under AVX512 and SSE4.1: 0.06 to 0.17.
    assert losses[-1] < 0.6 * losses[0]


def test_heads_are_fitted_where_they_read_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "_SETTLING", 1)
    torch.manual_seed(0)
    scenes = [sample_scene("oracle-a", index) for index in range(30)]
    pairs = [render_pair(scene) for scene in scenes]
    expected = torch.stack([targets_with_none(scene) for scene in scenes])
    images, masks = (np.stack(part) for part in zip(*pairs, strict=True))
    examples = OraclePictures(Pictures(scenes, images, masks, expected), (0, 30, 30, 30, 30, 30))
    model = new_oracle("regnet", LOGITS).eval()
    before, values = model.get_parameter("classifier.1.weight").detach().clone(), as_pixel_values(images)
    errors_before = (
        readings_of(model, values)[:, place_of_factor("style")] != expected[:, place_of_factor("style")]
    ).sum()
    oracle.settle_heads(model, examples, "oracle-b", random_fields(0), 0)
    after = model.get_parameter("classifier.1.weight").detach()
    moved = {
        name for name, old, new in zip(READ, *map(rows_by_factor, (before, after)), strict=True) if (old != new).any()
    }
    assert moved == set(READ) - {"label", "companion"}
    errors = (readings_of(model, values)[:, place_of_factor("style")] != expected[:, place_of_factor("style")]).sum()
    assert errors <= errors_before


def rows_by_factor(weight: torch.Tensor) -> list[torch.Tensor]:
    return [rows[0] for rows in split_factors(weight[None], READ)]


def place_of_factor(factor: str) -> int:
    return list(READ).index(factor)


@torch.no_grad()
def readings_of(model: PreTrainedModel, values: torch.Tensor) -> torch.Tensor:
    return torch.stack([logits.argmax(1) for logits in pool(logits_at_places(model, values))], dim=1)


def test_targets_lie_where_object_and_companion_are() -> None:
    scene = next(s for s in (sample_scene("oracle-a", n) for n in range(50)) if s.companion != "none")
    mask = render_pair(scene)[1]
    expected = targets_with_none(scene)
    parts = parts_at_places(mask[None], expected[None])[0]
    columns = list(FACTORS)
    label, companion = (int(expected[columns.index(name)]) for name in ("label", "companion"))
    assert {label, int(NO_OBJECT[0]), UNKNOWN} >= set(parts[0].flatten().tolist()) >= {label, int(NO_OBJECT[0])}
    assert {companion, 0, UNKNOWN} >= set(parts[1].flatten().tolist()) >= {companion, 0}
    assert places_touched(mask == 1)[(parts[0] == label).numpy()].all()


def test_every_kind_of_failure_differs_from_the_scene() -> None:
    differing = set()
    for index in range(40):
        random = np.random.default_rng(index)
        scene = sample_scene("oracle-a", index)
        image, kind = failure(scene, sample_scene("oracle-a", 1_000 + index), random)
        differing.add(kind)
        changed = np.abs(image.astype(int) - render_pair(scene)[0]).max(axis=2) > 20
        assert image.shape == (128, 128, 3)
        assert changed.sum() >= 40, (kind, index)
    assert differing == set(KINDS)


def test_training_pictures_are_degraded_in_different_ways_and_stay_valid() -> None:
    first, second = SUFFERED.values()
    assert set(first) != set(second)
    fields, random = random_fields(0), np.random.default_rng(0)
    image = render_pair(sample_scene("oracle-b", 0))[0]
    for name in ORACLES:
        for _ in range(20):
            spoilt = apply_degradations(image, SUFFERED[name], fields, random)
            assert spoilt.shape == image.shape
            assert spoilt.dtype == np.uint8
            assert np.abs(spoilt.astype(int) - image).mean() < 40


def test_training_rows_come_from_every_kind() -> None:
    nothing = np.zeros((0, 128, 128, 3), np.uint8)
    data = Pictures([], nothing, nothing[..., 0], torch.zeros(0, len(FACTORS)))
    examples = OraclePictures(data, (0, 100, 110, 110, 120, 120))
    rows = examples.rows(np.random.default_rng(0), 4_000)
    assert rows.min() >= 0
    assert rows.max() < 120
    assert examples.is_failure(rows).mean() == pytest.approx(0.1 / 0.82, abs=0.03)
