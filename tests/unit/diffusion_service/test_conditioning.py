"""Control images of drawn scenes, and the geometry to the model and back."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from diffusion_service.control_images import canny, object_region, structure
from diffusion_service.geometry import MAX_AREA, fit, to_model, to_source

SIZE = 128
sides = st.integers(min_value=8, max_value=900)


def scene(flakes: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A red box on a green ground under a blue sky, with some white flakes; and the box's mask."""
    image = np.empty((SIZE, SIZE, 3), np.uint8)
    image[:70], image[70:] = (110, 170, 230), (60, 150, 60)
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[60:95, 40:90] = 255
    image[mask > 0] = (200, 30, 30)
    random = np.random.default_rng(1)
    for x, y in random.integers(6, SIZE - 6, (flakes, 2)):
        cv2.circle(image, (int(x), int(y)), 1, (250, 250, 250), -1)
    return image, mask


def test_canny_is_black_and_white_and_finds_outlines() -> None:
    edges = canny(scene()[0])
    assert edges.shape == (SIZE, SIZE)
    assert set(np.unique(edges)) == {0, 255}
    assert edges[58:62, 45:85].any(axis=0).all(), "the upper outline of the box"


def test_structure_loses_flakes_and_keeps_outlines() -> None:
    plain, snowy = scene()[0], scene(flakes=60)[0]
    added_by_snow = (canny(snowy) > 0) & (cv2.dilate(canny(plain), np.ones((5, 5))) == 0)
    left_by_structure = (structure(snowy) > 0) & added_by_snow
    assert left_by_structure.sum() < 0.1 * added_by_snow.sum()
    outline = canny(plain) > 0
    near = cv2.dilate(structure(snowy), np.ones((5, 5))) > 0
    assert (outline & near).sum() > 0.8 * outline.sum()


def test_structure_keeps_small_detail_of_what_must_stay_only() -> None:
    image, mask = scene()
    cv2.rectangle(image, (60, 70), (68, 78), (250, 250, 250), -1)  # a window in the box
    cv2.circle(image, (20, 20), 1, (250, 250, 250), -1)  # a star
    with_mask = structure(image, mask)
    assert with_mask[66:82, 56:72].any()
    assert not with_mask[15:25, 15:25].any()


def test_object_region_has_only_the_outline_of_the_object() -> None:
    image, mask = scene()
    edges = object_region(canny(image), mask)
    assert edges[58:62, 45:85].any(axis=0).all()
    assert not edges[:, :30].any(), "the horizon"


@settings(deadline=None)
@given(width=sides, height=sides, resolution=st.sampled_from([128, 512]), multiple=st.sampled_from([16, 64]))
def test_sizes_fit_the_networks_and_their_budget(width: int, height: int, resolution: int, multiple: int) -> None:
    geometry = fit(width, height, resolution, multiple)
    assert geometry.source == (width, height)
    assert all(side % multiple == 0 and side > 0 for side in geometry.padded)
    assert all(0 <= p - s < multiple for p, s in zip(geometry.padded, geometry.scaled, strict=True))
    area = (geometry.scaled[0] - 1) * (geometry.scaled[1] - 1)
    assert area <= MAX_AREA * resolution**2
    shortest, longest = sorted((width, height))
    if longest <= MAX_AREA * shortest:
        assert min(geometry.scaled) == resolution


@settings(deadline=None)
@given(width=sides, height=sides)
def test_the_way_back_has_exactly_the_sources_size(width: int, height: int) -> None:
    geometry = fit(width, height, 128, 16)
    image = np.zeros((height, width, 3), np.uint8)
    there = to_model(image, geometry)
    assert there.shape == (geometry.padded[1], geometry.padded[0], 3)
    assert to_source(there, geometry).shape == image.shape
    mask = to_source(to_model(image[:, :, 0], geometry), geometry)
    assert mask.shape == image.shape[:2]


@pytest.mark.parametrize("size", [(300, 200), (97, 211), (640, 128)])
def test_nothing_drifts_on_the_way(size: tuple[int, int]) -> None:
    """A spot comes back where it was, to a pixel of the model's size."""
    width, height = size
    mask = np.zeros((height, width), np.uint8)
    mask[height // 3 : height // 2, width // 4 : width // 2] = 255
    geometry = fit(width, height, 128, 16)
    back = to_source(to_model(mask, geometry), geometry)
    tolerance = 1 + max(width / geometry.scaled[0], height / geometry.scaled[1])
    for axis in (0, 1):
        was, is_ = np.flatnonzero(mask.any(axis=axis)), np.flatnonzero(back.any(axis=axis))
        assert abs(was[0] - is_[0]) <= tolerance
        assert abs(was[-1] - is_[-1]) <= tolerance


def test_an_image_of_the_models_size_is_untouched() -> None:
    image = scene(flakes=20)[0]
    geometry = fit(SIZE, SIZE, 128, 16)
    assert np.array_equal(to_source(to_model(image, geometry), geometry), image)
