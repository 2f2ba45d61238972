"""Whether a detector is right on its originals, and the convention of its boxes where it is another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from gateway.analysis.detection import COUNTED, BoxedPair, CountingLimits, Objects, Predicted
from gateway.analysis.effects import Floats
from gateway.analysis.original_boxes import JudgedBoxes, judge_boxes

CLASSES = ("car", "bus", "tram")
LIMITS = CountingLimits(0.5, np.full(len(CLASSES), 0.5))
SIZE = np.array([640.0, 360.0])


def scenes(count: int, seed: int, sizes: Sequence[float] = (1.0,), spread: float = 1.0) -> list[Objects]:
    """One to three objects an image, which is of one of these multiples of `SIZE`; they lie in its left upper part."""
    random = np.random.default_rng(seed)
    images = []
    for place in range(count):
        number, size = int(random.integers(1, 4)), SIZE * sizes[place % len(sizes)]
        sides = random.uniform(0.08, 0.35, (number, 2)) * size
        corner = spread * random.uniform(0, 1, (number, 2)) * (size - sides)
        images.append(
            Objects(
                np.hstack([corner, corner + sides]),
                random.integers(0, len(CLASSES), number),
                sides.prod(axis=1),
                np.full(number, COUNTED),
            )
        )
    return images


def judged(
    images: Sequence[Objects],
    returned: Callable[[Floats], Floats],
    noise: float = 2.0,
    missed: float = 0.1,
    seed: int = 1,
    only: int | None = None,
) -> JudgedBoxes:
    """A detector that misses some objects and whose boxes are off by some pixels, in the convention `returned`.

    `only`: the class of all its boxes.
    """
    random = np.random.default_rng(seed)
    pairs = []
    for objects in images:
        boxes = returned(objects.boxes + random.normal(0, noise, objects.boxes.shape))
        kept = (random.random(len(boxes)) >= missed) & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        label = objects.label[kept] if only is None else np.full(int(kept.sum()), only)
        pairs.append(BoxedPair(objects, Predicted(boxes[kept], label, np.full(int(kept.sum()), 0.9))))
    judgement = judge_boxes(pairs, np.arange(len(pairs)), CLASSES, LIMITS, seed)
    assert judgement is not None
    return judgement


def as_they_are(boxes: Floats) -> Floats:
    return boxes


RETURNED: dict[str, Callable[[Floats], Floats]] = {
    "transposed": lambda boxes: boxes[:, [1, 0, 3, 2]],
    "sides": lambda boxes: np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]),
    "corners as sides": lambda boxes: np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]),
    "centres": lambda boxes: np.hstack([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]]),
    "scaled": lambda boxes: boxes * np.tile([416 / 640, 416 / 360], 2),
    "mirrored": lambda boxes: np.column_stack([SIZE[0] - boxes[:, 2], boxes[:, 1], SIZE[0] - boxes[:, 0], boxes[:, 3]]),
    "upside down": lambda boxes: np.column_stack(
        [boxes[:, 0], SIZE[1] - boxes[:, 3], boxes[:, 2], SIZE[1] - boxes[:, 1]]
    ),
}


@pytest.mark.parametrize("convention", RETURNED)
def test_boxes_of_another_convention_are_named(convention: str) -> None:
    """They were called "not testable", and nothing said why. Boxes without an area are no boxes."""
    all_kept = convention in ("transposed", "scaled", "mirrored", "upside down")
    judgement = judged(scenes(24, 3, spread=1.0 if all_kept else 0.2), RETURNED[convention])
    assert judgement.misread is not None
    assert judgement.misread.convention == convention
    assert judgement.misread.recall > (0.7 if all_kept else 0.25)
    assert judgement.standing != "sound"
    if convention == "scaled":
        assert np.allclose(judgement.misread.scale, [640 / 416, 360 / 416], rtol=0.1)


@pytest.mark.parametrize("sizes", [(1.0,), (1.0, 0.6, 1.7)])
@pytest.mark.parametrize(("noise", "missed"), [(2.0, 0.1), (8.0, 0.5), (16.0, 0.7)])
def test_boxes_of_the_right_convention_are_not_said_to_be_misread(
    sizes: Sequence[float], noise: float, missed: float
) -> None:
    judgements = [judged(scenes(24, seed, sizes), as_they_are, noise, missed, seed) for seed in range(5)]
    assert [judgement.misread for judgement in judgements] == [None] * 5
    assert noise > 2 or {judgement.standing for judgement in judgements} == {"sound"}


def test_a_detector_that_finds_nothing_is_not_testable() -> None:
    judgement = judged(scenes(24, 3), as_they_are, missed=1.0)
    assert (judgement.standing, judgement.confident, judgement.highest) == ("unsound", 0, None)
    assert (judgement.misread, judgement.order) == (None, {})


def test_a_detector_that_calls_every_object_the_same_is_not_sound() -> None:
    """Its boxes find the objects of that class, so it was tested, and nothing said what it does."""
    judgement = judged(scenes(24, 3), as_they_are, only=0)
    assert (judgement.only, judgement.standing) == (0, "open")
    assert judged(scenes(24, 3), as_they_are).only is None
