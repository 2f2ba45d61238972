"""Does a verdict depend on the order of the images? `python -m benchmarks.simulated_orders`.

The model loses as many images as a plan calls detectable, so that many tables are near the border of a finding. Each
table is tested in several random orders of its images, as the cell of one finding among eight. No order is better than
another: where verdicts differ, the order decides.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from gateway.analysis.betting import betting_p
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

    found: tuple[bool, ...]

    @property
    def depends(self) -> bool:
        """Whether the order decides."""
        return len(set(self.found)) > 1


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--orders", type=int, default=5)
    arguments = parser.parse_args()
    for sources in SOURCES:
        results = simulate_orders(sources, arguments.tables, arguments.orders)
        depends = sum(result.depends for result in results)
        found = np.mean([result.found for result in results])
        print(
            f"{sources} images: found {found:.1%}; verdict depends on the order in {depends} of {len(results)} tables"
        )


if __name__ == "__main__":
    main()
