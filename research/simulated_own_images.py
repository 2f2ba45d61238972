"""Does the comparison with own images cover the truth if the scorer errs? `python -m research.simulated_own_images`.

A share of a class's images shows the value of a finding. The model is right on 65 % of these and on 95 % of the others:
the true difference is −30 points. The scorer recognises 93 % of the images of each kind. It
chooses the samples alone, or people mark the images of the page: a random 48 of its choice and 8 others.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.own_images import Booleans, Marks, OwnSamples, difference_interval, images_to_mark, own_samples
from shared.seeds import derive_seed

RIGHT, DROP = 0.95, 0.30
RECOGNISED = 0.93  # recall and specificity of the scorer
IMAGES = 400
SHARES = (0.05, 0.10, 0.20)  # of the images that show the value


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison: the estimated difference and whether its 95 % interval covers the true one."""

    difference: float
    covers: bool


def compare(share: float, table: int, *, by_eye: bool, images: int = IMAGES) -> Compared | None:
    """One random test set, compared as a report does; None if a sample is empty."""
    random = np.random.default_rng(derive_seed("own images", int(1_000 * share), images, table))
    shows = random.random(images) < share
    correct = random.random(images) < RIGHT - DROP * shows
    separation = NormalDist().inv_cdf(RECOGNISED)
    score = random.normal(np.where(shows, separation, -separation))
    chosen = np.asarray(score > 0)
    marked = np.zeros(images, np.bool_)
    if by_eye:
        digests = [random.bytes(8).hex() for _ in range(images)]
        to_mark = set(images_to_mark(digests, chosen, score))
        marked = np.array([digest in to_mark for digest in digests])
    return _difference(own_samples(chosen, Marks(marked & shows, marked & ~shows, np.zeros_like(marked))), correct)


def _difference(samples: OwnSamples, correct: Booleans) -> Compared | None:
    groups = np.arange(len(correct))
    showing, rest = (clustered_rate(correct[mask], groups[mask]) for mask in (samples.showing, samples.rest))
    interval = difference_interval(showing, rest)
    if showing.value is None or rest.value is None or interval is None:
        return None
    return Compared(showing.value - rest.value, interval.low <= -DROP <= interval.high)


def main() -> None:
    """A line for each share and each way to choose the images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1_000)
    tables = parser.parse_args().tables
    for share in SHARES:
        for by_eye in (False, True):
            drawn = [compare(share, table, by_eye=by_eye) for table in range(tables)]
            results = [result for result in drawn if result is not None]
            bias = float(np.mean([result.difference for result in results])) + DROP
            coverage = float(np.mean([result.covers for result in results]))
            name = "marked by eye" if by_eye else "scorer alone"
            print(f"{share:.0%} show the value, {name}: bias {100 * bias:+.1f} points, covers {coverage:.1%}", end="")
            print(f" (n {len(results)})", flush=True)


if __name__ == "__main__":
    main()
