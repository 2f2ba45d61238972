"""Where an adaptive job spends its next renderings: first on every place alike, then on those that seem to fail most.

A *place* is a class and a value that its images can be changed to. Each place has an order of its source images that
is fixed before the first one is rendered, and always gets the next images of it. The first round gives every place
equally many. Each later round ranks the places by their drop, shrunk towards 0 for few images. It gives the first of
them their share of the images that they lack, until the budget of the round is spent.

All images of a place enter its test (`betting.anytime_p`), which holds for whatever number of images it gets.
`benchmarks/simulated_designs.py` measures power and false findings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.analysis.limits import LEAST_SOURCES

SCREENING_SHARE = 0.25  # of the budget, for the first round
LATER_ROUNDS = 6
LARGEST_SHARE = 0.5  # of the budget, for one place


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A place that may get more images.

    `drop`: the largest mean drop in accuracy among the models (−1 … 1, of `images` images that count) whose test is
    open. `free`: the source images that it may still get, in their order. `decided`: no test is open.
    """

    drop: float
    images: int
    free: Sequence[int]
    decided: bool = False

    @property
    def shrunk(self) -> float:
        """The drop, shrunk towards 0 for few images."""
        return self.drop * self.images / (self.images + LEAST_SOURCES)


def allocate(
    places: Mapping[str, Suspicion], budget: int, rounds_left: int, cost: Callable[[int], int]
) -> dict[str, list[int]]:
    """The source images that each place gets in a later round of `budget` renderings; `rounds_left` counts this one.

    `cost`: the most renderings of one source image that gets so many values in a round, arms included. Together they
    never exceed the budget. A place that stays among the first can get all of its images by the last round. What is
    left goes to the places in the same order. Equal inputs give equal shares: ties go by name.
    """
    order = sorted(places, key=lambda name: (-places[name].shrunk, name))
    shares: dict[str, list[int]] = {name: [] for name in order if not places[name].decided}
    values = Counter[int]()
    for part in (1 / max(1, rounds_left), 1.0):
        for name, images in shares.items():
            free = places[name].free
            for image in free[len(images) : math.ceil(part * len(free))]:
                price = cost(values[image] + 1) - cost(values[image])
                if price > budget:
                    break
                budget -= price
                values[image] += 1
                images.append(image)
    return {name: images for name, images in shares.items() if images}
