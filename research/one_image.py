"""Count the files that one source image goes through from `POST /jobs` to the report, in one or more checkouts.

    python -m research.one_image [TREE ...] [--runs 3] [--json FILE]
    python -m research.one_image --list

The rule is the same for every checkout. `dillema` and the default model of the profile `tiny` process one labelled
picture in the embedded system. Every function of the product counts at its first call after the request; what only the
start calls does not count. In this order of functions

    an opening   is a change of file
    a return     is an opening of a file that was opened before
    a package    is a folder of the files

Threads interleave a little differently in each run, so the median of the runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

from benchmarks.requests import sources
from research import traced_image

TREE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Way:
    """The counts of one run."""

    openings: int
    returns: int
    files: int
    packages: int
    functions: int


def way_of(files: Sequence[str]) -> Way:
    """The counts of a list of files, one for each function in the order of first calls."""
    opened = [path for path, _ in groupby(files)]
    distinct = set(opened)
    packages = {Path(path).parent for path in distinct}
    return Way(len(opened), len(opened) - len(distinct), len(distinct), len(packages), len(files))


def trace(tree: Path) -> list[str]:
    """The files of all functions on the way of one picture in a checkout. Raises CalledProcessError if it fails."""
    (image,) = sources(1)
    with TemporaryDirectory() as folder:
        picture = Path(folder, "picture.png")
        picture.write_bytes(image.image.png)
        command = [sys.executable, "-P", str(Path(traced_image.__file__)), str(tree), str(picture)]
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        finished = subprocess.run(
            [*command, image.ground_truth or ""], cwd=tree, env=environment, stdout=subprocess.PIPE, check=True
        )
    files: list[str] = json.loads(finished.stdout)
    return files


def main() -> None:
    """Trace the image in each checkout, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[TREE], help="checkouts; default: this one")
    parser.add_argument("--runs", type=int, default=3, help="runs of each checkout")
    parser.add_argument("--json", type=Path, help="write the counts of every run here, too")
    parser.add_argument("--list", action="store_true", help="print the files of one run of this checkout instead")
    arguments = parser.parse_args()
    if arguments.list:
        print(*(path for path, _ in groupby(trace(TREE))), sep="\n")
        return
    ways = {str(tree): [way_of(trace(tree.resolve())) for _ in range(arguments.runs)] for tree in arguments.trees}
    for tree, runs in ways.items():
        counts = {name: [asdict(run)[name] for run in runs] for name in asdict(runs[0])}
        print(tree, *(f"{name} {median_low(values)} {values}" for name, values in counts.items()), sep="\n  ")
    if arguments.json:
        rows = [{"tree": tree, "runs": [asdict(run) for run in runs]} for tree, runs in ways.items()]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
