"""Protected regions: finding them, holding them (against a naive loop), and finding them again."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusion_service.protection import (
    LIGHT_REACH,
    Level,
    Region,
    Shape,
    find_regions,
    outline_contrast,
    region_outcomes,
    relit,
    restore_shapes,
    soft_mask,
    union,
)
from diffusion_service.schedulers import Sampling
from shared.problems import InvalidInput

LABELS = ("road", "pedestrian", "vehicle")
SIDE = 100


def street(*boxes: tuple[int, int, int, int, int]) -> np.ndarray:
    """A label map of road with boxes of label, left, top, width and height."""
    label_map = np.zeros((SIDE, SIDE), np.int64)
    for label, left, top, width, height in boxes:
        label_map[top : top + height, left : left + width] = label
    return label_map


def test_regions_are_connected_and_specks_are_ignored() -> None:
    regions = find_regions(
        street((1, 5, 5, 8, 20), (1, 40, 5, 8, 20), (2, 60, 60, 20, 10), (1, 90, 90, 2, 2)), LABELS, LABELS[1:]
    )
    assert [(region.label, int(region.mask.sum())) for region in regions] == [
        ("pedestrian", 160), ("pedestrian", 160), ("vehicle", 200),
    ]  # fmt: skip
    assert find_regions(street(), LABELS, ["vehicle"]) == []
    with pytest.raises(InvalidInput, match="tree"):
        find_regions(street(), LABELS, ["tree"])


def fates(before: np.ndarray, after: np.ndarray) -> list[float]:
    regions = find_regions(before, LABELS, ["pedestrian"])
    return [outcome.iou for outcome in region_outcomes(regions, after, LABELS, np.zeros((SIDE, SIDE, 3), np.uint8))]


def test_each_instance_is_judged_by_itself() -> None:
    two = street((1, 5, 5, 10, 20), (1, 40, 5, 10, 20))
    assert fates(two, two) == [1.0, 1.0]
    assert fates(two, street((1, 5, 5, 10, 20))) == [1.0, 0.0], "one walked away"
    assert fates(two, street((1, 5, 5, 10, 10), (1, 70, 5, 10, 20))) == [0.5, 0.0], "somebody elsewhere is nobody"
    assert fates(two, street((2, 5, 5, 10, 20), (1, 40, 5, 10, 20))) == [0.0, 1.0], "a vehicle is no pedestrian"
    assert fates(two, street((1, 5, 5, 45, 20))) == [10 / 35, 10 / 35], "one wide thing in place of both is neither"


boxes = st.tuples(
    st.just(1), st.integers(0, 80), st.integers(0, 80), st.integers(6, 19), st.integers(6, 19)
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(before=st.lists(boxes, min_size=1, max_size=5), after=st.lists(boxes, max_size=5))
def test_overlaps_are_shares_and_1_where_nothing_changed(
    before: list[tuple[int, int, int, int, int]], after: list[tuple[int, int, int, int, int]]
) -> None:
    assert all(0 <= iou <= 1 for iou in fates(street(*before), street(*after)))
    assert all(iou == 1 for iou in fates(street(*before), street(*before)))


def test_a_pasted_edge_raises_the_contrast_of_the_outline() -> None:
    plain = np.full((SIDE, SIDE, 3), 60, np.uint8)
    mask = street((1, 30, 30, 30, 30)) == 1
    pasted, faded = plain.copy(), plain.copy()
    pasted[mask] = 200
    soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 6)[..., None]
    faded = (plain + 140 * soft).astype(np.uint8)
    assert outline_contrast(plain, mask) == 0
    assert outline_contrast(pasted, mask) > 2 * outline_contrast(faded, mask) > 0


def test_the_soft_mask_is_the_share_that_is_covered() -> None:
    regions = [Region("pedestrian", street((1, 41, 41, 18, 18)) == 1)]
    mask = soft_mask(regions, (SIDE, SIDE), 4)
    assert mask.shape == (1, 1, 25, 25)
    assert mask[0, 0, 10:15, 10:15].min() == 1, "a pixel wider than the region"
    assert mask.sum() == 25
    assert soft_mask([], (SIDE, SIDE), 4).sum() == 0
    assert union([], (SIDE, SIDE)).sum() == 0


SCHEDULERS = [
    cls(prediction_type=kind)
    for cls in (
        DDIMScheduler,
        DPMSolverMultistepScheduler,
        EulerDiscreteScheduler,
        PNDMScheduler,
        UniPCMultistepScheduler,
    )
    for kind in ("epsilon", "v_prediction")
    if not (cls is PNDMScheduler and kind == "v_prediction")
]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # UniPC on a numpy above 2.0
@pytest.mark.parametrize(
    "scheduler", SCHEDULERS, ids=lambda scheduler: f"{type(scheduler).__name__}-{scheduler.config.prediction_type}"
)
def test_levels_hold_for_every_scheduler(scheduler: DDIMScheduler) -> None:
    scheduler.set_timesteps(8)
    random = torch.Generator().manual_seed(2)
    clean, noise = torch.randn(1, 4, 6, 6, generator=random), torch.randn(1, 4, 6, 6, generator=random)
    for time in scheduler.timesteps[1:7]:
        level = Level.of(scheduler, time)
        latents = scheduler.add_noise(clean, noise, time.reshape(1))
        assert torch.allclose(level.signal * clean + level.noise * noise, latents, atol=1e-4)
        size = np.hypot(level.signal, level.noise)
        truth = noise if scheduler.config.prediction_type == "epsilon" else (
            level.signal * noise - level.noise * clean
        ) / size  # fmt: skip
        cleaned = level.clean(latents, truth, scheduler.config.prediction_type)
        assert torch.allclose(cleaned, clean, atol=1e-2 / level.signal * size)
    assert Level.of(scheduler, None) == Level(1.0, 0.0)


def naive(shape: Shape, latents: torch.Tensor, level: Level, latents_of_source: torch.Tensor) -> torch.Tensor:
    """`Shape.restore`, latent by latent."""
    blended = latents.clone()
    height, width = latents.shape[-2:]
    half = max(1, round(LIGHT_REACH * min(height, width) / 2))
    for channel in range(latents.shape[1]):
        for y in range(height):
            for x in range(width):
                clean = float(shape.source[0, channel, y, x])
                if shape.relit:
                    places = [
                        (j, i)
                        for j in range(max(0, y - half), min(height, y + half + 1))
                        for i in range(max(0, x - half), min(width, x + half + 1))
                    ]
                    weight = sum(float(shape.mask[0, 0, j, i]) for j, i in places)
                    for tensor, sign in ((latents_of_source, 1), (shape.source, -1)):
                        mean = sum(float(shape.mask[0, 0, j, i] * tensor[0, channel, j, i]) for j, i in places)
                        clean += sign * mean / weight if weight else 0.0
                noised = level.signal * clean + level.noise * float(shape.noise[0, channel, y, x])
                share = float(shape.mask[0, 0, y, x])
                blended[0, channel, y, x] = share * noised + (1 - share) * float(latents[0, channel, y, x])
    return blended


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), height=st.integers(4, 12), width=st.integers(4, 12), lit=st.booleans())
def test_restored_latents_equal_those_of_a_naive_loop(seed: int, height: int, width: int, lit: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    source, noise, latents, source_latents = (torch.randn(1, 2, height, width, generator=random) for _ in range(4))
    mask = (torch.rand(1, 1, height, width, generator=random) * 3 - 1).clamp(0, 1)
    shape = Shape(source, mask, noise, until=1, relit=lit)
    level = Level(0.8, 0.6)
    blended = shape.restore(latents, level, source_latents)
    assert torch.allclose(blended, naive(shape, latents, level, source_latents), atol=1e-4)
    outside = (mask == 0).expand_as(latents)
    assert torch.equal(blended[outside], latents[outside])


def test_light_follows_and_shape_stays() -> None:
    random = torch.Generator().manual_seed(3)
    source, mask = torch.randn(1, 3, 16, 16, generator=random), torch.ones(1, 1, 16, 16)
    darker = relit(source, source - 5, mask)
    assert torch.allclose(darker, source - 5, atol=1e-5), "the same shape under another light"
    assert torch.allclose(relit(source, source, mask), source)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # UniPC on a numpy above 2.0
@pytest.mark.parametrize(
    "name", ["DDIMScheduler", "DPMSolverMultistepScheduler", "EulerDiscreteScheduler", "UniPCMultistepScheduler"]
)
def test_the_step_after_the_last_held_one_starts_from_the_held_latents(name: str) -> None:
    """The network predicts one clean image at all steps, so that every solver has a step's exact solution."""
    scheduler = Sampling.of({"clip_sample": False}, name).start(8, torch.device("cpu"))
    random = torch.Generator().manual_seed(2)
    source, noise, predicted_clean = (torch.randn(1, 4, 6, 6, generator=random) for _ in range(3))
    mask = torch.zeros(1, 1, 6, 6)
    mask[..., :3] = 1
    shape = Shape(source, mask, noise, until=3, relit=False)
    levels = [Level.of(scheduler, time) for time in scheduler.timesteps]
    latents = noise * scheduler.init_noise_sigma
    for step, time in enumerate(scheduler.timesteps[:4]):
        now, after = levels[step], levels[step + 1]
        predicted = start = (latents - now.signal * predicted_clean) / now.noise
        before, latents = latents, scheduler.step(predicted, time, latents, return_dict=False)[0]
        if step < shape.until:
            latents = restore_shapes({0: shape}, step, scheduler, before, predicted, latents)
    exact = after.signal * predicted_clean + after.noise * start
    assert torch.allclose(latents, exact, atol=1e-3)
