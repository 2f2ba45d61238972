"""Geometry: an editor's output is mapped back exactly, at any size and aspect, so that masks stay valid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from diffusion_service.geometry import fit, to_model, to_source

SIDES = st.integers(16, 700)


def box(width: int, height: int, seed: int) -> tuple[NDArray[np.uint8], tuple[slice, slice]]:
    """A mask-like image: one box, somewhere, of a quarter to half of each side."""
    random = np.random.default_rng(seed)
    places = []
    for side in (height, width):
        length = int(random.integers(side // 4, side // 2 + 1))
        start = int(random.integers(0, side - length + 1))
        places.append(slice(start, start + length))
    mask = np.zeros((height, width), np.uint8)
    mask[places[0], places[1]] = 255
    return mask, (places[0], places[1])


def middle(mask: NDArray[np.uint8]) -> NDArray[np.float64]:
    rows, columns = np.nonzero(mask)
    return np.array([rows.mean(), columns.mean()])


@given(width=SIDES, height=SIDES, resolution=st.sampled_from([128, 512]), seed=st.integers(0, 2**32))
def test_a_mask_comes_back_where_it_was(width: int, height: int, resolution: int, seed: int) -> None:
    geometry = fit(width, height, resolution, 8)
    mask, _ = box(width, height, seed)
    back = to_source(to_model(mask, geometry), geometry)
    assert back.shape == mask.shape
    scale = max(1.0, height / geometry.scaled[1], width / geometry.scaled[0])
    # A border may fall between two pixels of the smaller size, half of one either way, and it does so by chance.
    assert np.abs(middle(back) - middle(mask)).max() <= scale / 2 + 0.5


@given(width=SIDES, height=SIDES, resolution=st.sampled_from([128, 512]), seed=st.integers(0, 2**32))
def test_a_picture_of_the_mask_comes_back_where_it_was(width: int, height: int, resolution: int, seed: int) -> None:
    geometry = fit(width, height, resolution, 8)
    mask, _ = box(width, height, seed)
    back = to_source(to_model(np.repeat(mask[..., None], 3, axis=2), geometry), geometry)
    assert back.shape == (height, width, 3)
    weights = back[..., 0].astype(float)
    places = np.array([(weights.sum(axis=1 - axis) @ np.arange(weights.shape[axis])) for axis in (0, 1)])
    scale = max(1.0, height / geometry.scaled[1], width / geometry.scaled[0])
    assert np.abs(places / weights.sum() - middle(mask)).max() <= 0.25 * scale + 0.25


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1111, 703), (640, 480), (333, 999)])
def test_masks_do_not_drift_to_one_side_on_average(width: int, height: int) -> None:
    geometry = fit(width, height, 128, 8)
    drifts = []
    for seed in range(40):
        mask, _ = box(width, height, seed)
        drifts.append(middle(to_source(to_model(mask, geometry), geometry)) - middle(mask))
    assert np.abs(np.mean(drifts, axis=0)).max() < 0.5
