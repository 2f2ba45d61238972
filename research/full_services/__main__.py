"""Run the services at full size on random weights, part by part, each in a process of its own: `make full-size`.

    python -m research.full_services [--parts sd15,sdxl] [--threads 1] [--cache DIR] [--memory 11] [--keep]

Architectures are those of the public configurations; values are random, so images and captions mean nothing, and
seconds and memory are as with the trained weights. A part that needs more memory than `--memory` GiB is stopped. The
figures go into research/results/full-size.json; those of other parts stay. All are printed at the end as the tables of
research/docs/full-size.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.machine import processor
from research.full_services.part import WRITTEN
from research.full_services.parts import PARTS
from research.full_services.table import full_size_section
from shared.profiles.arithmetic import cpu_has_bfloat16

RESULTS = Path(__file__).parents[1] / "results" / "full-size.json"
GIB = 2**30
WATCH_SECONDS = 0.2
LONGEST_WARNING = 300


def main() -> None:
    """Write weights, measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--cache", type=Path, help="folder for the weights, up to 10 GB at a time; default: temporary")
    parser.add_argument("--memory", type=float, default=14.0, help="GiB of resident memory at which a part is stopped")
    parser.add_argument("--keep", action="store_true", help="keep the weights in --cache")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    options = parser.parse_args()
    names = options.parts.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        cache: Path = options.cache or Path(temporary)
        for name in names:
            folder = cache / PARTS[name].weights
            figures = run_part(name, folder, options.threads, options.memory)
            write_figures(options.json, name, figures | _conditions(options.threads, name))
            later = names[names.index(name) + 1 :]
            if not options.keep and PARTS[name].weights not in [PARTS[name_of_part].weights for name_of_part in later]:
                shutil.rmtree(folder, ignore_errors=True)
    print(full_size_section(options.json))


def run_part(name: str, folder: Path, threads: int, most_gib: float) -> dict[str, Any]:
    """The figures of one part; with `stopped` where it needed too much memory or failed."""
    command = [sys.executable, "-m", "research.full_services.part", name, str(folder), "--threads", str(threads)]
    if not (folder / WRITTEN).exists() and (reason := run_watched(command, most_gib)[0]):
        return {"stopped": f"writing the weights: {reason}"}
    figures: dict[str, Any] = {"title": PARTS[name].title, "parameters": json.loads((folder / WRITTEN).read_text())}
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "figures.json"
        reason, warnings = run_watched([*command, "--measure", str(out)], most_gib)
        measured = json.loads(out.read_text()) if out.exists() else {}
    stopped = {"stopped": reason} if reason else {}
    return figures | measured | stopped | {"warnings": warnings}


def run_watched(command: list[str], most_gib: float) -> tuple[str, list[str]]:
    """Run a command; returns why it ended early (empty: it did not) and the warnings that it printed."""
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(command, stderr=errors) as process:
        reason = _watch(psutil.Process(process.pid), process, most_gib)
        errors.seek(0)
        lines = errors.read().splitlines()
    if process.returncode and not reason:
        reason = lines[-1][:LONGEST_WARNING] if lines else f"exit code {process.returncode}"
        print("\n".join(lines[-30:]), file=sys.stderr, flush=True)
    return reason, list(dict.fromkeys(line[:LONGEST_WARNING] for line in lines if "warning" in line.lower()))


def _watch(memory: psutil.Process, process: subprocess.Popen[bytes], most_gib: float) -> str:
    while process.poll() is None:
        try:
            resident = memory.memory_info().rss / GIB
        except psutil.NoSuchProcess:
            break
        if resident > most_gib:
            process.kill()
            return f"{resident:.1f} GiB of resident memory exceed {most_gib:g} GiB"
        time.sleep(WATCH_SECONDS)
    return ""


def write_figures(path: Path, name: str, figures: dict[str, Any]) -> None:
    """Put one part's figures into the file, in the order of the parts."""
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    stored[name] = figures
    path.write_text(json.dumps({part: stored[part] for part in PARTS if part in stored}, indent=1) + "\n")


def _conditions(threads: int, name: str) -> dict[str, Any]:
    return {
        "processor": processor(),
        "native_bfloat16": cpu_has_bfloat16(),
        "threads": threads,
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"make full-size PARTS={name}",
    }


if __name__ == "__main__":
    main()
