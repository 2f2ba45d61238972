"""Where an adaptive job spends its next renderings: first widely, then on the cells under suspicion.

A *place* is a class and a value that its images can be changed to. A screening round gives every place about equally
many source images. A place is a suspect if its drop in accuracy, shrunk towards 0 for few images, is beyond 5 points.
Later rounds give suspects as many fresh source images as a drop of this size needs, strongest evidence first, and what
is left of the round to all other places again.

Suspects are chosen by their screening images and tested on fresh ones alone, so the choice does not bias the test.
`benchmarks/simulated_designs.py` measures power and false findings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.analysis.limits import BEYOND, LEAST_SOURCES
from gateway.analysis.power import sources_needed

SCREENING_SHARE = 0.5  # of the budget
CONFIRMING_ROUNDS = 3
_STEP = 0.05  # drops are rounded down to this, to limit the number of power simulations


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A place that may get more images.

    `drop`: the largest mean drop in accuracy among the models (0 … 1, of `images` images). `free`: source images of its
    class that have not got the value. `horizon` and `given`: for a suspect, the images that its test was planned for
    and those that it got; 0 before. `decided`: its test is over. `yield_` is the share of its images whose pairs count.
    """

    drop: float
    images: int
    free: int
    yield_: float
    horizon: int = 0
    given: int = 0
    decided: bool = False

    @property
    def shrunk(self) -> float:
        """The drop, shrunk towards 0 for few images."""
        return max(0.0, self.drop) * self.images / (self.images + LEAST_SOURCES)


@dataclass(frozen=True, slots=True)
class Share:
    """What a place gets in a round: `confirming` and `screening` images. Its test is planned for `horizon` images."""

    confirming: int = 0
    screening: int = 0
    horizon: int = 0


def round_budgets(budget: int) -> list[int]:
    """The renderings of each round: the screening round, then equal confirming rounds. They sum up to `budget`."""
    screening = math.ceil(SCREENING_SHARE * budget)
    rest = budget - screening
    return [screening, *(rest * (k + 1) // CONFIRMING_ROUNDS - rest * k // CONFIRMING_ROUNDS for k in range(3))]


def allocate(places: Mapping[str, Suspicion], edits: int, rounds_left: int) -> dict[str, Share]:
    """What each place gets in a confirming round of so many edits; `rounds_left` counts this one.

    A suspect's need is spread over the rounds that are left. A place that is not decided but has no free image gets
    none. Equal inputs give equal shares: ties go by name.
    """
    shares = {name: Share(horizon=place.horizon) for name, place in places.items()}
    order = sorted(places, key=lambda name: (-places[name].horizon, -places[name].shrunk, name))
    suspects = [name for name in order if _is_suspect(places[name])]
    left = edits
    for name in suspects:
        place = places[name]
        horizon = place.horizon or _horizon(place, len(suspects))
        missing = max(0, math.ceil(horizon / max(place.yield_, 0.1)) - place.given)
        confirming = min(math.ceil(missing / max(1, rounds_left - 1)), place.free, left)
        if confirming:
            shares[name] = Share(confirming=confirming, horizon=horizon)
            left -= confirming
    return _widened(places, shares, left)


def is_cleared(place: Suspicion, confirmed: int) -> bool:
    """Whether a suspect with so many tested images (at least 12) is a suspect no more."""
    return confirmed >= LEAST_SOURCES and place.shrunk <= BEYOND


def _is_suspect(place: Suspicion) -> bool:
    return not place.decided and place.free > 0 and (place.horizon > 0 or place.shrunk > BEYOND)


def _horizon(place: Suspicion, family: int) -> int:
    """The images that a test needs for a drop of the place's size, or for the largest that is possible."""
    drop = max(2 * _STEP, math.floor(round(place.shrunk / _STEP, 6)) * _STEP)
    return sources_needed(round(drop, 2), max(4, family)) or place.free


def _widened(places: Mapping[str, Suspicion], shares: dict[str, Share], left: int) -> dict[str, Share]:
    """The shares, and what is left spread over the places that are no suspects, those with the fewest images first."""
    open_places = [name for name, place in places.items() if not place.decided and not shares[name].horizon]
    gained = dict.fromkeys(open_places, 0)
    for _ in range(left):
        with_room = [name for name in open_places if gained[name] < places[name].free]
        if not with_room:
            break
        gained[min(with_room, key=lambda name: (places[name].images + gained[name], name))] += 1
    return shares | {name: Share(screening=count) for name, count in gained.items() if count}
