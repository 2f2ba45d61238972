"""`make paper-tables`: run every method as one job on the same source images, and print the papers' tables.

python -m research.paper_tables run --sources 24              # all arms that have no row yet
python -m research.paper_tables run --arms lance-direct       # one arm; --again measures it again
python -m research.paper_tables print --sources 24 > FILE     # the tables of the available rows, as Markdown

Each arm's row is written to `research/paper_tables/results/` with its command when its measurement ends.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import torch

from gateway.methods import METHODS
from research.paper_tables.arms import ARMS, measure_arm
from research.paper_tables.rows import ArmRow
from research.paper_tables.tables import tables
from research.system.packed import read_text, write_text

RESULTS = Path(__file__).parent / "results"
SMALL = 24  # source images: three of each class


def main() -> None:
    """The command."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes it started end, too
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    if options.command == "run":
        run(options)
    print(tables(rows(options.sources)))


def run(options: argparse.Namespace) -> None:
    """Measure the arms that have no row yet."""
    for name in options.arms:
        path = row_path(name, options.sources)
        if path.exists() and not options.again:
            continue
        if ARMS[name].method not in METHODS:
            print(f"{name}: left out, there is no method {ARMS[name].method!r}", file=sys.stderr)
            continue
        command = f"python -m research.paper_tables run --sources {options.sources} --arms {name}"
        row = measure_arm(name, options.sources, options.profile, command)
        RESULTS.mkdir(exist_ok=True)
        write_text(path, row.model_dump_json() + "\n")
        print(f"{name}: {row.funnel.accepted.count} accepted in {row.seconds} seconds; {path}", file=sys.stderr)


def rows(sources: int) -> Sequence[ArmRow]:
    """The available rows for a number of source images."""
    paths = [row_path(name, sources) for name in ARMS]
    return [ArmRow.model_validate_json(read_text(path)) for path in paths if path.exists()]


def row_path(arm: str, sources: int) -> Path:
    """The path of an arm's row."""
    return RESULTS / f"{arm}-{sources}.json.gz"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running, printing = commands.add_parser("run"), commands.add_parser("print")
    for command in (running, printing):
        command.add_argument("--sources", type=int, default=SMALL, help="source images, the same for all arms")
    running.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=tuple(ARMS))
    running.add_argument("--again", action="store_true", help="measure arms anew that have a row")
    running.add_argument("--profile", default="tiny")
    return parser.parse_args()


if __name__ == "__main__":
    main()
