"""Where an adaptive job spends its next renderings: first on every place equally, then on those that seem to fail most.

A *place* is a class and a value that its images can be changed to. The order of a place's source images is fixed before
the first one is rendered, and each round takes the next images in that order. The first round gives every place the
same number. Each later round ranks the places by their drop, shrunk towards 0 for few images, and gives images to the
highest-ranked places until the round's budget is spent.

All images of a place enter its test (`betting.anytime_p`), which is valid for any number of images.
`research/simulated_designs.py` measures power and false findings.
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

    `cost`: number of values that a source image gets in a round → its maximum number of renderings, arms included. The
    total never exceeds the budget. A place that stays highly ranked can get all of its images by the last round. The
    rest of the budget goes to the places in the same order. Ties are broken by name.
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
