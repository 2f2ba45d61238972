"""By how much an editor moved a picture."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from evaluator_service.registration import find_move
from shared.media.images import Pixels
from shared.media.moves import moved_back
from tinyworld.roads.render import render
from tinyworld.roads.world import sample_scene

SCENE = sample_scene("calibration", 3)
SOURCE = render(SCENE).image


def moved(image: Pixels, zoom: float, right: float, down: float) -> Pixels:
    """Zoomed about its middle, then shifted by pixels."""
    middle = (1 - zoom) * 127 / 2
    matrix = np.array([[zoom, 0, middle + right], [0, zoom, middle + down]])
    return np.asarray(cv2.warpAffine(image, matrix, (128, 128), borderMode=cv2.BORDER_REFLECT), np.uint8)


@pytest.mark.parametrize(("zoom", "right", "down"), [(1.04, 0, 0), (1, 5, -3), (0.97, -2, 4), (1.05, -6, 6)])
@pytest.mark.parametrize("look", [{}, {"time": "night"}, {"weather": "fog"}])
def test_a_zoom_and_a_shift_are_found_under_another_look(
    zoom: float, right: float, down: float, look: dict[str, str]
) -> None:
    found = find_move(SOURCE, moved(render(SCENE.changed(**look)).image, zoom, right, down))
    assert found is not None
    corner = 64 * abs(found.zoom - zoom) + max(abs(found.right - right), abs(found.down - down))
    assert corner < 1.5, found


def test_a_picture_that_is_moved_back_is_where_it_was() -> None:
    image = moved(SOURCE, 1.05, 4, -3)
    found = find_move(SOURCE, image)
    assert found is not None
    back = moved_back(image, SOURCE, found)
    assert find_move(SOURCE, back) is None
    assert np.abs(back.astype(int) - SOURCE).mean() < np.abs(image.astype(int) - SOURCE).mean() / 3
    assert (back[:4, 40] == SOURCE[:4, 40]).all(), "what it does not show is the source's"
    assert found.shown == pytest.approx((1 / 1.05 - 0.5 * (4 / 64 - 0.05) / 1.05) * (1 / 1.05), abs=0.02)


def test_an_unmoved_picture_stays() -> None:
    for look in ({}, {"time": "night"}, {"weather": "fog"}, {"weather": "snow"}):
        assert find_move(SOURCE, render(SCENE.changed(**look)).image) is None


def test_a_picture_without_edges_or_of_another_scene_is_not_moved() -> None:
    grey = np.full((60, 80, 3), 90, np.uint8)
    assert find_move(grey, grey) is None
    assert find_move(SOURCE, np.random.default_rng(0).integers(0, 255, SOURCE.shape, np.uint8)) is None
    assert find_move(SOURCE[:9, :9], SOURCE[3:12, :9]) is None
    with pytest.raises(ValueError, match="same size"):
        find_move(grey, grey[:50])
