"""The masks of a background remover, and the masks that are refused."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from diffusion_service.background_remover import BackgroundRemover, implausible
from shared.media.images import Pixels
from shared.profiles import diffusion as profiles
from tests.support.small_remover import SIDE, write_remover

HEIGHT, WIDTH = 120, 200


def remover(folder: Path, **changed: str) -> BackgroundRemover:
    fields = {"sha256": write_remover(folder / "model.onnx"), **changed}
    plain = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    weights = profiles.BackgroundRemover(path=folder, licence="none", gigabytes=0.001, **fields, **plain)
    return BackgroundRemover(weights, device="cpu")


def dark_picture() -> Pixels:
    return np.full((HEIGHT, WIDTH, 3), 60, np.uint8)


def test_the_mask_has_the_pictures_size_and_covers_the_object(tmp_path: Path) -> None:
    picture, truth = dark_picture(), np.zeros((HEIGHT, WIDTH), np.uint8)
    for canvas, colour in ((picture, (255, 250, 240)), (truth, 1)):
        cv2.circle(canvas, (120, 50), 30, colour, -1)
    mask, nothing = remover(tmp_path).find(None, [picture, dark_picture() // 3])
    assert isinstance(mask, np.ndarray)
    overlap = ((mask > 0) & (truth > 0)).sum() / ((mask > 0) | (truth > 0)).sum()
    assert overlap > 0.9
    assert isinstance(nothing, str), "the largest value of a dark picture is no object"


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        ([(20, 20, 40, 40)], ""),
        ([(0, 30, 40, SIDE)], ""),  # in a corner: it touches two sides
        ([(30, 30, 36, 36)], "nothing stands out"),
        ([(2, 2, 62, 62)], "fills"),
        ([(5, 5, 25, 25), (40, 40, 60, 60)], "pieces"),
        ([(0, 20, SIDE, SIDE)], "three sides"),
    ],
)
def test_a_mask_that_is_not_one_object_is_refused(boxes: list[tuple[int, int, int, int]], reason: str) -> None:
    opacity = np.zeros((SIDE, SIDE), np.uint8)
    for left, top, right, bottom in boxes:
        opacity[top:bottom, left:right] = 255
    assert (reason in implausible(opacity)) if reason else not implausible(opacity)


def test_an_uncertain_outline_is_refused() -> None:
    opacity = np.zeros((SIDE, SIDE), np.uint8)
    opacity[10:50, 10:50] = 180
    opacity[20:40, 20:40] = 255
    assert "uncertain" in implausible(opacity)


def test_another_file_than_the_profiles_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SHA-256"):
        remover(tmp_path, sha256="0" * 64)
