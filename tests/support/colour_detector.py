"""A detector whose behaviour is known: the boxes of connected regions of red, green and blue, in torch operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CLASSES = ["car", "bus", "tram"]  # of red, green and blue rectangles
Image = NDArray[np.uint8]
Box = tuple[int, int, int, int, str]


class ColourDetector(torch.nn.Module):
    """Called as torchvision's detectors. The score is how much a region's colour stands out: 1 for pure colours."""

    def __init__(self) -> None:
        super().__init__()
        self.least = torch.nn.Parameter(torch.tensor(0.25), requires_grad=False)

    def forward(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """For each image (3 × height × width, 0 to 1): `boxes` (corners in pixels), `labels` and `scores`."""
        return [self._detect(image) for image in images]

    def _detect(self, image: Tensor) -> dict[str, Tensor]:
        boxes, labels, scores = [], [], []
        for channel in range(3):
            others = image[[other for other in range(3) if other != channel]].amax(0)
            excess = image[channel] - others
            for region in _regions(excess > self.least):
                rows, columns = torch.nonzero(region, as_tuple=True)
                boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                labels.append(channel)
                scores.append(excess[region].mean().item())
        return {
            "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor(labels, dtype=torch.int64),
            "scores": torch.tensor(scores),
        }


def _regions(mask: Tensor) -> list[Tensor]:
    """The connected regions of 6 pixels and more: the largest number spreads until nothing changes."""
    numbers = torch.arange(1, mask.numel() + 1, dtype=torch.float32).reshape(mask.shape) * mask
    while True:
        spread = torch.nn.functional.max_pool2d(numbers[None, None], 3, stride=1, padding=1)[0, 0] * mask
        if torch.equal(spread, numbers):
            break
        numbers = spread
    found = sorted(set(numbers[numbers > 0].tolist()))
    return [region for number in found if (region := numbers == number).sum() >= 6]


def street(number: int, height: int = 30, width: int = 40) -> tuple[Image, list[Box]]:
    """A dark street with a red car on the left, and a green bus on the right of all but every third."""
    random = np.random.default_rng(number)
    pixels, boxes = np.full((height, width, 3), 20, np.uint8), []
    for place, name in enumerate(CLASSES[: 1 + (number % 3 > 0)]):
        left, top = 3 + 20 * place + int(random.integers(0, 4)), int(random.integers(2, 12))
        right, bottom = left + int(random.integers(8, 14)), top + int(random.integers(8, 16))
        pixels[top:bottom, left:right, place] = random.integers(160, 250)
        boxes.append((left, top, right, bottom, name))
    return pixels, boxes
