"""Does the interval of the valid share from a judge and few reviews hold? Jobs with a known share.

Every accepted edit has a judge's score, and people review a random sample. The judge is useless, fair, good, biased to
high scores, or says yes and no only. Run: `python -m benchmarks.simulated_judges --runs 2000`.

With `--library`, the interval is that of `ppi-python`, the package of the method's authors, which must be installed
(`pip install ppi-python==0.2.3`).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping

import numpy as np

from gateway.analysis.certainty import LEVEL
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.prediction_powered import prediction_powered_share
from gateway.analysis.thresholds import Booleans

Judge = Callable[[np.random.Generator, Booleans], Floats]
UNREVIEWED = 400  # edits without a review


def _grade(strength: float) -> Judge:
    """A judge whose log-odds are `strength` above or below zero, with unit noise."""
    return lambda random, valid: np.asarray(
        1 / (1 + np.exp(-(random.normal(size=len(valid)) + strength * (2.0 * valid - 1))))
    )


JUDGES: Mapping[str, Judge] = {
    "useless": lambda random, valid: random.random(len(valid)),
    "fair": _grade(0.6),
    "good": _grade(2.0),
    "biased": lambda random, valid: 0.8 + 0.2 * valid * random.random(len(valid)),
    "yes or no": lambda random, valid: np.where(
        valid, random.random(len(valid)) < 0.95, random.random(len(valid)) < 0.3
    ).astype(np.float64),
}


Interval = Callable[[Booleans, Floats, Integers, Floats, Integers], tuple[float, float] | None]


def our_interval(
    valid: Booleans, scores: Floats, group: Integers, other_scores: Floats, other_group: Integers
) -> tuple[float, float] | None:
    """The interval of `prediction_powered_share`; None with too few reviews."""
    powered = prediction_powered_share(valid, scores, group, other_scores, other_group)
    return None if powered is None else (powered.low, powered.high)


def library_interval() -> Interval:
    """The interval of `ppi_py.ppi_mean_ci`, which knows no groups. Raises ImportError without the package."""
    library = importlib.import_module("ppi_py")

    def interval(
        valid: Booleans, scores: Floats, group: Integers, other_scores: Floats, other_group: Integers
    ) -> tuple[float, float]:
        low, high = library.ppi_mean_ci(valid.astype(np.float64), scores, other_scores, alpha=1 - LEVEL)
        return float(low[0]), float(high[0])

    return interval


def coverage(
    interval: Interval, judge: Judge, share: float, reviewed: int, siblings: int, runs: int
) -> tuple[float, float]:
    """The share of simulated jobs whose interval has the true share, and the mean width of the interval."""
    hits, width = 0, 0.0
    for seed in range(runs):
        random = np.random.default_rng((seed, reviewed, siblings, round(100 * share)))
        group = np.arange(reviewed + UNREVIEWED) // siblings
        valid = np.repeat(random.random(int(group[-1]) + 1) < share, siblings)[: len(group)]
        scores = judge(random, valid)
        chosen = np.zeros(len(group), np.bool_)
        chosen[random.permutation(len(group))[:reviewed]] = True
        limits = interval(valid[chosen], scores[chosen], group[chosen], scores[~chosen], group[~chosen])
        low, high = limits or (0.0, 1.0)
        hits += low <= share <= high
        width += high - low if limits else 0.0
    return hits / runs, width / runs


def main() -> None:
    """Print coverage and width for each judge, share, number of reviews, and number of siblings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.3, 0.6, 0.9], help="true valid shares")
    parser.add_argument("--reviews", type=int, nargs="+", default=[25, 50, 100])
    parser.add_argument("--library", action="store_true", help="the interval of ppi-python instead of ours")
    arguments = parser.parse_args()
    runs, interval = arguments.runs, library_interval() if arguments.library else our_interval
    for siblings in (1, 3):
        for share in arguments.shares:
            for reviewed in arguments.reviews:
                cells = [coverage(interval, judge, share, reviewed, siblings, runs) for judge in JUDGES.values()]
                row = "  ".join(
                    f"{name} {coverage:.3f} ({width:.2f})"
                    for name, (coverage, width) in zip(JUDGES, cells, strict=True)
                )
                print(f"{siblings} per source, share {share:g}, {reviewed} reviews: {row}")


if __name__ == "__main__":
    main()
