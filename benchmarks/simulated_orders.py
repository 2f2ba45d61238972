"""Does a verdict depend on the order of the images? `python -m benchmarks.simulated_orders`.

The model loses as many images as a plan calls detectable, so that many tables are near the border of a finding. Each
table is tested in several random orders of its images, as the cell of one finding among eight. No order is better than
another: where verdicts differ, the order decides. Then the same test on tables whose true mean is exactly the border of
the null hypothesis: it is refuted in at most 5 % of them if the average over orders is valid, and the 95 % interval
covers it in all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.analysis.betting import betting_p, is_refuted
from gateway.analysis.effects import Floats
from gateway.analysis.limits import BEYOND, FALSE_DISCOVERY_RATE
from gateway.analysis.power import detectable_drop
from shared.seeds import derive_seed

FAMILY = 8  # tested cells of a job
ACCURACY = 0.95
SOURCES = (15, 20, 40, 80, 300)


@dataclass(frozen=True, slots=True)
class OrderedVerdicts:
    """Verdicts on one table, one for each order of its images."""

    is_finding: tuple[bool, ...]

    @property
    def depends(self) -> bool:
        """Whether the order decides."""
        return len(set(self.is_finding)) > 1


def draw_differences(sources: int, drop: float, random: np.random.Generator) -> Floats:
    """Right on the counterfactual less right on the null arm, −1, 0 or 1, of independent images."""
    right, before = random.random(sources) < ACCURACY - drop, random.random(sources) < ACCURACY
    return right.astype(float) - before


def verdicts(differences: Floats, orders: int, random: np.random.Generator) -> OrderedVerdicts:
    """Whether the cell would be a finding if it were the only effect among the tested ones, by order."""
    alpha = FALSE_DISCOVERY_RATE / FAMILY
    return OrderedVerdicts(tuple(betting_p(random.permutation(differences), BEYOND) <= alpha for _ in range(orders)))


def simulate_orders(sources: int, tables: int, orders: int) -> list[OrderedVerdicts]:
    """The verdicts on random tables with the drop that this many images detect with 80 % power."""
    drop = detectable_drop(sources, FAMILY, ACCURACY)
    assert drop is not None
    results = []
    for table in range(tables):
        random = np.random.default_rng(derive_seed("verdict by order", sources, table))
        results.append(verdicts(draw_differences(sources, drop, random), orders, random))
    return results


# P(lost), P(gained), and the size of a loss or gain: 1, or 1 / 3 where an image has three edits.
NULLS = (
    (0.05, 0.0, 1.0),
    (0.10, 0.05, 1.0),
    (0.30, 0.25, 1.0),
    (0.50, 0.45, 1.0),
    (0.15, 0.0, 1 / 3),
    (0.40, 0.25, 1 / 3),
)


def refuted_nulls(sources: int, null: tuple[float, float, float], tables: int) -> tuple[int, int]:
    """Tables whose true mean, −5 points, bets on lower means refute at 2.5 %, and bets on higher means."""
    lost, gained, size = null
    random = np.random.default_rng(derive_seed("null", sources, *map(str, null)))
    unit = (1 + size * random.choice([-1.0, 0.0, 1.0], (sources, tables), p=[lost, 1 - lost - gained, gained])) / 2
    low, high = (np.full(tables, (1 + sign * BEYOND) / 2) for sign in (1, -1))
    alpha = FALSE_DISCOVERY_RATE / 2
    return int(is_refuted(1 - unit, low, alpha).sum()), int(is_refuted(unit, high, alpha).sum())


def print_nulls(images: Sequence[int], tables: int) -> None:
    """A line for each number of images and each distribution."""
    for sources in images:
        for null in NULLS:
            below, above = refuted_nulls(sources, null, tables)
            print(f"{sources} images, {null}: refuted {below / tables:.2%} (below) + {above / tables:.2%} (above)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--orders", type=int, default=5)
    parser.add_argument(
        "--nulls", type=int, default=2_000, help="tables at the border of the null hypothesis, 0 for none"
    )
    parser.add_argument("--images", type=int, nargs="+", default=SOURCES, help="numbers of images")
    arguments = parser.parse_args()
    if arguments.nulls:
        print_nulls(arguments.images, arguments.nulls)
    for sources in arguments.images:
        results = simulate_orders(sources, arguments.tables, arguments.orders)
        depends = sum(result.depends for result in results)
        share = np.mean([result.is_finding for result in results])
        print(
            f"{sources} images: found {share:.1%}; verdict depends on the order in {depends} of {len(results)} tables",
            flush=True,
        )


if __name__ == "__main__":
    main()
