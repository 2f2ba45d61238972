"""Are variance components recovered from right and wrong predictions? `python -m benchmarks.simulated_components`.

A model is right with probability 0.6 + s + e: s is ±0.2 for each source image, e is ±0.1 for each of its edits. So the
components are 0.04 between sources, 0.01 between edits and 0.19 between seeds. A tenth of the renderings is refused.
"""

from __future__ import annotations

import argparse

import numpy as np

from gateway.analysis.components import Nested, RenderingCost, variance_components
from shared.schemas.estimates import VarianceComponents
from shared.seeds import derive_seed

TRUTH = {"source": 0.04, "edit": 0.01, "seed": 0.19}
COST = RenderingCost(source=0.0, rendering=40.0)


def simulate_components(sources: int, edits: int, seeds: int, seed: int) -> VarianceComponents:
    """The estimates from one random table."""
    random = np.random.default_rng(seed)
    source = np.repeat(np.arange(sources), edits * seeds)
    edit = np.repeat(np.arange(sources * edits), seeds)
    rates = 0.6 + random.choice([-0.2, 0.2], sources)[source] + random.choice([-0.1, 0.1], sources * edits)[edit]
    difference = (random.random(len(rates)) < rates) - 1.0
    accepted = random.random(len(rates)) < 0.9
    nested = Nested(difference[accepted], edit[accepted] % 2, source[accepted], edit[accepted])
    figures = variance_components(nested, COST, seed)
    if figures is None:
        raise ValueError(f"{sources} source images are too few; simulate at least 12")
    return figures


def main() -> None:
    """Print mean estimates and coverage for each design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    tables = parser.parse_args().tables
    for sources, edits, seeds in ((30, 4, 2), (100, 4, 2), (100, 2, 4), (300, 4, 2)):
        figures = [
            simulate_components(sources, edits, seeds, derive_seed("components", sources, edits, seeds, table))
            for table in range(tables)
        ]
        lines = []
        for name, truth in TRUTH.items():
            parts = [part for components in figures if (part := getattr(components, name)) is not None]
            mean = float(np.mean([part.value for part in parts]))
            coverage = float(np.mean([part.low <= truth <= part.high for part in parts]))
            lines.append(f"{name} {mean:.3f} (truth {truth}, covered {coverage:.0%})")
        best = sum(components.next[0].buy == "sources" for components in figures)
        print(
            f"{sources} sources × {edits} edits × {seeds} seeds: {'; '.join(lines)}; sources next: {best}", flush=True
        )


if __name__ == "__main__":
    main()
