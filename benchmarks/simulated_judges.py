"""Does the interval of the valid share from a judge and few reviews hold? Jobs with a known share.

Every accepted edit has a judge's score, and people review a random sample. The judge is useless, fair, good, biased to
high scores, or says yes and no only. Run: `python -m benchmarks.simulated_judges --runs 2000`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import numpy as np

from gateway.analysis.effects import Floats
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


def coverage(judge: Judge, share: float, reviewed: int, siblings: int, runs: int) -> tuple[float, float]:
    """The share of simulated jobs whose interval has the true share, and the mean width of the interval."""
    hits, width = 0, 0.0
    for seed in range(runs):
        random = np.random.default_rng((seed, reviewed, siblings, round(100 * share)))
        group = np.arange(reviewed + UNREVIEWED) // siblings
        valid = np.repeat(random.random(int(group[-1]) + 1) < share, siblings)[: len(group)]
        scores = judge(random, valid)
        chosen = np.zeros(len(group), np.bool_)
        chosen[random.permutation(len(group))[:reviewed]] = True
        powered = prediction_powered_share(
            valid[chosen], scores[chosen], group[chosen], scores[~chosen], group[~chosen]
        )
        if powered is not None:
            hits += powered.low <= share <= powered.high
            width += powered.high - powered.low
        else:
            hits += 1
    return hits / runs, width / runs


def main() -> None:
    """Print coverage and width for each judge, share, number of reviews, and number of siblings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2_000)
    runs = parser.parse_args().runs
    for siblings in (1, 3):
        for share in (0.1, 0.3, 0.6, 0.9):
            for reviewed in (25, 50, 100):
                cells = [coverage(judge, share, reviewed, siblings, runs) for judge in JUDGES.values()]
                row = "  ".join(
                    f"{name} {coverage:.3f} ({width:.2f})"
                    for name, (coverage, width) in zip(JUDGES, cells, strict=True)
                )
                print(f"{siblings} per source, share {share:.1f}, {reviewed} reviews: {row}")


if __name__ == "__main__":
    main()
