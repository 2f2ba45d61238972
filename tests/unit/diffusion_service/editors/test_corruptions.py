"""Corruptions: stronger with severity, deterministic by seed, at any size, refused for tiny images."""

from __future__ import annotations

from itertools import pairwise

import kornia
import numpy as np
import pytest
import torch
from torch import Tensor

from diffusion_service.editors import corruptions
from diffusion_service.editors.corruptions import CORRUPTIONS, corrupt
from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.diffusion import SEVERITIES, Corruption, CorruptionKind
from tinyworld.objects.demo import demo_scenes
from tinyworld.objects.render import render

PICTURE = render(demo_scenes(["bus"], 1)[0]).image
KINDS = list(CORRUPTIONS)


def corruption_of(kind: CorruptionKind, severity: int, seed: int = 7, source: Pixels = PICTURE) -> Pixels:
    return corrupt(source, Corruption(kind=kind, severity=severity, seed=seed))


def distance(image: Pixels) -> float:
    return float(np.abs(image.astype(float) - PICTURE).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_each_severity_is_further_from_the_source_than_the_one_before(kind: CorruptionKind) -> None:
    distances = [distance(corruption_of(kind, severity)) for severity in (0, *SEVERITIES)]
    assert distances[0] == 0.0, "severity 0 is the unchanged image"
    assert distances[1] > 1.0
    assert distances[-1] > 1.2 * distances[1]
    assert all(later > 0.9 * former for former, later in pairwise(distances)), distances


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_alone_decides_what_is_random(kind: CorruptionKind) -> None:
    assert np.array_equal(corruption_of(kind, 3), corruption_of(kind, 3))
    random = kind.endswith("noise") or kind in ("motion_blur", "fog")
    assert np.array_equal(corruption_of(kind, 3, seed=7), corruption_of(kind, 3, seed=8)) is not random


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_motion_blur_is_kornias_within_a_grey_level(severity: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.random.default_rng(seed).integers(0, 256, (150, 90, 3), dtype=np.uint8)
    image = corruption_of("motion_blur", severity, seed, source)

    def convolve(image: Tensor, kernel: Tensor) -> Tensor:
        return torch.as_tensor(kornia.filters.filter2d(image[None], kernel[None])[0])

    monkeypatch.setattr(corruptions, "filter_by_shifts", convolve)
    convolved = corruption_of("motion_blur", severity, seed, source)
    assert np.abs(image.astype(int) - convolved).max() <= 1


@pytest.mark.parametrize("kind", ["gaussian_noise", "impulse_noise"])
def test_severities_under_one_seed_differ_in_strength_alone(kind: CorruptionKind) -> None:
    """What a weak corruption does, a stronger one of the same seed does more of: no new lot is drawn."""
    grey = np.full((64, 64, 3), 128, np.uint8)
    grey[:, ::2] = 100
    weak, strong = (corruption_of(kind, severity, source=grey).astype(float) - grey for severity in (2, 3))
    other = corruption_of(kind, 3, seed=8, source=grey).astype(float) - grey
    alike = np.corrcoef(weak.ravel(), strong.ravel())[0, 1]
    assert alike > 0.6
    assert alike > np.corrcoef(weak.ravel(), other.ravel())[0, 1]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 120), (37, 53)])
def test_any_size_comes_back_as_it_went_in(height: int, width: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    for kind in KINDS:
        for severity in SEVERITIES:
            image = corruption_of(kind, severity, source=source)
            assert image.shape == source.shape
            assert image.dtype == np.uint8


def test_lengths_grow_with_the_image() -> None:
    """An edge is blurred over the same share of a small and of a large image."""
    shares = []
    for side in (64, 256):
        edge = np.zeros((side, side, 3), np.uint8)
        edge[:, side // 2 :] = 255
        row = corruption_of("defocus_blur", 5, source=edge)[side // 2, :, 0]
        shares.append(((row > 5) & (row < 250)).sum() / side)
    assert shares[0] == pytest.approx(shares[1], rel=0.2)


def test_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(InvalidInput, match="8 are needed"):
        corruption_of("fog", 1, source=np.zeros((4, 40, 3), np.uint8))
