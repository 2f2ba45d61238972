"""Measure registration: `python -m research.calibrate.registration --scenes 120 --photographs FOLDER`.

Pictures of an editor that stay in place are moved here by a known zoom, shift, or both, of up to 5 %. The figures: the
share of 32-pixel boxes that a perfect detector would seem to lose (IoU below 0.5), without and with registration; the
share of unmoved pictures that count as moved, and of them that are refused; the same of moved ones.

* Driving scenes: counterfactuals and null arms of the shipped generator, 128 pixels.
* Photographs (JPEG files below the folder, by default two of scikit-learn), 512 pixels: night, fog, snow, rain, other
  colours, less contrast and a new object, drawn over them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from evaluator_service.registration import find_move
from gateway.methods.checks import LEAST_SHOWN
from research.judges.oracles.roads import READ
from research.judges.protection.gallery import Gallery
from research.judges.protection.roads import ROADS, protected_edit
from research.statistics.rates import fraction_text
from shared.media.images import Pixels
from shared.media.moves import shown
from shared.profiles.profile import load_profile
from shared.schemas.evaluation import Move
from tinyworld.roads.world import sample_scene

BOX, BOXES, SIDE = 32, 20, 512
MOST = 0.05
STILL = Move(zoom=1, right=0, down=0, shown=1)
Floats = NDArray[np.float64]
Random = np.random.Generator
Looks = Mapping[str, Callable[[Floats, Random], Floats]]


def _fog(image: Floats, random: Random) -> Floats:
    density = np.linspace(0.85, 0.35, len(image))[:, None, None]
    return image * (1 - density) + density * 0.85


def _snow(image: Floats, random: Random) -> Floats:
    flakes = np.float32(random.random(image.shape[:2]) < 1 / 150)
    cover = np.clip(cv2.GaussianBlur(flakes, (0, 0), 1.2) * 5, 0, 1)[..., None]
    ground = image * 0.6 + 0.4 * (cv2.GaussianBlur(image.mean(axis=2), (0, 0), 5)[..., None] > 0.4)
    return np.asarray(ground * (1 - cover) + cover, float)


def _rain(image: Floats, random: Random) -> Floats:
    streak = cv2.line(np.zeros((21, 21), np.float32), (12, 0), (8, 20), 1 / 3, 1)
    drops = cv2.filter2D(np.float32(random.random(image.shape[:2]) > 0.985), -1, streak)
    return np.asarray(image * 0.7 + 0.35 * np.clip(drops, 0, 1)[..., None], float)


def _object(image: Floats, random: Random) -> Floats:
    height, width = image.shape[:2]
    new = cv2.resize(random.random((8, 8, 3)), (width // 2, height // 2), interpolation=cv2.INTER_NEAREST)
    covered = image.copy()
    covered[height // 3 :, width // 4 :][: height // 2, : width // 2] = new
    return covered


LOOKS: Looks = {
    "night": lambda image, random: image**2.2 * np.array([0.25, 0.3, 0.5]) + random.normal(0, 0.02, image.shape),
    "fog": _fog,
    "snow": _snow,
    "rain": _rain,
    "other colours": lambda image, random: image[..., [2, 0, 1]],
    "low contrast": lambda image, random: cv2.GaussianBlur(image * 0.5 + 0.3, (0, 0), 1.6),
    "a new object": _object,
}


def roads(scenes: int) -> Iterator[tuple[str, Pixels, Pixels]]:
    """Name of the arm, source and picture by the shipped generator."""
    gallery = Gallery(load_profile("tiny-roads"), ROADS)
    for number in range(scenes):
        scene = sample_scene("calibration", number)
        request = protected_edit(f"c{number:04d}", scene, tuple(READ)[number % len(READ)])
        ((_, edited, null),) = gallery.draw(request, [gallery.own_arm])
        yield "roads, counterfactuals", request.source, edited
        yield "roads, null arms", request.source, null


def photographs(folder: Path | None) -> Iterator[tuple[str, Pixels, Pixels]]:
    """Name of the look, photograph and the photograph under it."""
    files = [] if folder is None else sorted(folder.rglob("*.jpg"))
    opened = (
        (Image.open(file).convert("RGB") for file in files)
        if files
        else map(Image.fromarray, load_sample_images().images)
    )
    for number, photograph in enumerate(opened):
        source = np.asarray(ImageOps.contain(photograph, (SIDE, SIDE)))
        for name, look in LOOKS.items():
            changed = look(source / 255, np.random.default_rng((0x4E5, number)))
            yield f"photographs, {name}", source, np.asarray((255 * changed).clip(0, 255), np.uint8)


def random_move(random: Random, width: int, height: int) -> Move:
    """A zoom, a shift, or both."""
    zoom, right, down = random.uniform(-MOST, MOST, 3)
    kind = random.integers(3)
    return Move(
        zoom=1 + zoom * (kind != 0), right=right * width * (kind != 1), down=down * height * (kind != 1), shown=1
    )


def moved(image: Pixels, move: Move) -> Pixels:
    """The picture as an editor would move it; what comes in is a reflection."""
    height, width = image.shape[:2]
    across, along = ((1 - move.zoom) * (side - 1) / 2 for side in (width, height))
    matrix = np.array([[move.zoom, 0, across + move.right], [0, move.zoom, along + move.down]])
    size = (width, height)
    return np.asarray(cv2.warpAffine(image, matrix, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT))


def lost_boxes(found: Move, true: Move, width: int, height: int, random: Random) -> int:
    """How many of `BOXES` boxes, placed by the one move, have an IoU below 0.5 with where they are by the other."""
    corners = random.uniform(0, 1, (BOXES, 2)) * [width - BOX, height - BOX]
    boxes, middle = np.hstack([corners, corners + BOX]), np.array([width, height] * 2) / 2
    first, second = ((boxes - middle) * move.zoom + middle + [move.right, move.down] * 2 for move in (found, true))
    sides = (np.minimum(first[:, 2:], second[:, 2:]) - np.maximum(first[:, :2], second[:, :2])).clip(min=0)
    common, areas = sides.prod(axis=1), [(place[:, 2:] - place[:, :2]).prod(axis=1) for place in (first, second)]
    return int((common / (areas[0] + areas[1] - common) < 0.5).sum())


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=120)
    parser.add_argument("--photographs", type=Path, help="a folder of JPEG files")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    counts: dict[str, NDArray[np.int64]] = {}
    seconds, random = 0.0, np.random.default_rng(0x4E6)
    for pictures in (photographs(arguments.photographs), roads(arguments.scenes)):
        for name, source, image in pictures:
            height, width = source.shape[:2]
            true = random_move(random, width, height)
            began = time.process_time()
            still, found = find_move(source, image), find_move(source, moved(image, true))
            seconds += time.process_time() - began
            row = [
                still is not None,
                still is not None and still.shown < LEAST_SHOWN,
                found is not None and found.shown < LEAST_SHOWN <= shown(true, width, height),
                lost_boxes(STILL, true, width, height, random),
                lost_boxes(found or STILL, true, width, height, random),
                1,
            ]
            counts[name] = counts.get(name, np.zeros(len(row), np.int64)) + row
    for name, (moves, refused, refused_moved, without, lost, images) in counts.items():
        print(f"{name}: boxes lost {fraction_text(int(lost), BOXES * int(images))}, without registration {without}")
        print(
            f"  moved pictures refused {refused_moved}; unmoved {images}, counted as moved {moves}, refused {refused}"
        )
    print(f"{1000 * seconds / (2 * sum(int(row[-1]) for row in counts.values())):.0f} ms CPU per picture")


if __name__ == "__main__":
    main()
