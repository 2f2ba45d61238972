"""Compare the cost of Contrafact's rendering loops with that of plain ones: `make benchmark`.

    python -m benchmarks [--images 6] [--lance-images 1] [--job-images 12] [--no-full-size] [--json FILE]

1. DILLEMA's and LANCE's rendering on the tiny weights: diffusers' public pipeline and the papers' null-text loop
   against ours, per counterfactual produced. `make cost` (`research.cost_of_methods`) has them judged, too.
2. The same loops on Stable Diffusion 1.5's full-size networks: passes counted in 1, seconds per pass measured on random
   weights at 512 × 512 (`full_size`). Extrapolated, not run: a loop takes an hour on a CPU.
3. A job's throughput over the sum of its stages, and each service's peak memory (`job`).

Seconds are CPU seconds of one thread. Compare ratios within a run, not seconds. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import diffusers.utils.logging
import torch
import transformers.utils.logging

from benchmarks.cost_arms import Arm, arms_of
from benchmarks.cost_pipelines import PUBLISHED_CODE
from benchmarks.cost_report import measure, ratios, row, table
from benchmarks.cost_sources import sources
from benchmarks.cost_weights import Shape
from benchmarks.full_size import Prices, full_size_table, measure_prices
from benchmarks.job import job_cost
from benchmarks.machine import processor
from shared.profiles.profile import load_profile


def main() -> None:
    """Run the three parts and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=6, help="sources of DILLEMA's arms, 2 edits each")
    parser.add_argument("--lance-images", type=int, default=1, help="sources of LANCE's, whose loop takes minutes")
    parser.add_argument("--job-images", type=int, default=12, help="source images of the job")
    parser.add_argument("--no-full-size", action="store_true", help="leave out part 2 (12 GB of memory)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of parts 1 and 2")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for library in (diffusers.utils.logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()
    started = time.perf_counter()
    figures: dict[str, Any] = {"processor": processor(), "threads": options.threads}
    print(f"{figures['processor']}, {options.threads} thread(s), torch {torch.__version__}\n")
    arms = tiny_arms(options.images, options.lance_images)
    rows = [row(arm) for arm in arms]
    figures["tiny"] = {"rows": [arm_row._asdict() for arm_row in rows], "ratios": ratios(rows)}
    print("\n1. Tiny weights\n", table(rows), *ratios(rows), sep="\n", flush=True)
    if not options.no_full_size:
        prices = measure_prices(Shape(), PUBLISHED_CODE)
        print("\n2. Full size, random weights, 512 × 512, extrapolated per pass\n", flush=True)
        print(*(text := full_size_table(prices, arms)), sep="\n", flush=True)
        figures["full_size"] = {"passes": _passes(prices), "text": text}
    cost = job_cost(options.job_images)
    print(f"\n3. A job of {cost.images} source images\n", *cost.lines(), sep="\n", flush=True)
    figures |= {"job": cost.figures(), "minutes": (time.perf_counter() - started) / 60}
    print(f"\n{figures['minutes']:.1f} minutes in all")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def tiny_arms(images: int, lance_images: int) -> list[Arm]:
    """The arms on the tiny weights, after rendering. Ours at LANCE's settings is part of `make cost` only."""
    arms = arms_of(load_profile("tiny"), "cpu")
    arms.arms = [arm for arm in arms.arms if arm.name != "lance, their settings"]
    chosen = sources(max(images, lance_images), 2)
    for method, count in (("lance", lance_images), ("dillema", images)):
        if count:
            list(measure(arms, chosen[:count], [method]))
    return [arm for arm in arms.arms if arm.produced]


def _passes(prices: Prices) -> list[dict[str, Any]]:
    return [
        {"network": kind.network, "trained": kind.trained, "rows": rows, "cpu_seconds": seconds}
        for kind, sizes in prices.seconds.items()
        for rows, seconds in sizes.items()
    ]


if __name__ == "__main__":
    main()
