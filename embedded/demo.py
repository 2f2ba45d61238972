"""`make demo`: run one whole job on this machine, as a user would, with small models.

Two models under test are tested on 90 drawn street images and their counterfactuals. One has a planted weakness, and
the demo shows whether Contrafact finds it. It uses the public commands and prints each before it runs.

    python -m embedded.demo [--directory contrafact-demo] [--classes car,bus,truck] [--per-class 30]
    python -m embedded.demo --classes bus --per-class 44 --value weather=night     # smaller: one class, one change
    python -m embedded.demo --domain roads [--images 60]     # segmenters, on driving scenes with masks
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from contrafact.cli import app
from contrafact.client import Client
from embedded.demo_picture import draw_finding
from embedded.run import end_process, run_embedded
from shared.schemas.results import JobResults
from tinyworld.domain.names import add_domain
from tinyworld.objects.demo import write_demo
from tinyworld.roads import demo as roads_demo

TASK = "classify the vehicle in a street photo"
CLASSES = ("car", "bus", "truck")
ROADS_TASK = "segment the road scene"
WEATHER = ("--set", 'factors=["weather"]')


def main() -> None:
    """Parse the command line and run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("contrafact-demo"), help="folder for all output")
    parser.add_argument("--classes", default=",".join(CLASSES), help="of the source images; both models know all three")
    parser.add_argument("--per-class", type=int, default=30, help="source images per class")
    parser.add_argument("--value", help="this change for every image, where a language model chooses otherwise")
    add_domain(parser)
    parser.add_argument("--images", type=int, default=60, help="driving scenes")
    options = parser.parse_args()
    started = time.monotonic()
    if options.domain == "roads":
        run_roads_demo(options.directory, options.images)
    else:
        run_demo(options.directory, options.per_class, options.classes.split(","), options.value)
    print(f"\n{time.monotonic() - started:.0f} seconds in all.")
    end_process()


def run_demo(directory: Path, per_class: int, classes: Sequence[str] = CLASSES, value: str | None = None) -> JobResults:
    """Draw the pictures, run the job, print the findings and write the report. Returns the job's results."""
    images = directory / "images"
    write_demo(images, classes, per_class)
    print(f"Drew {per_class * len(classes)} pictures into {images}, with their labels in manifest.csv.")
    changes = WEATHER if value is None else ["--design", "balanced", "--value", value]
    return _run(directory, "tiny", [str(images), "--labels", str(images / "manifest.csv"), "--task", TASK, *changes])


def run_roads_demo(directory: Path, count: int) -> JobResults:
    """The same for segmenters, on driving scenes with masks."""
    folder = roads_demo.write_demo(directory / "roads", roads_demo.demo_scenes(count))
    print(f"Drew {count} driving scenes into {folder}, with their masks.")
    arguments = [str(folder), "--masks", str(folder / "classes.json"), "--task", ROADS_TASK, *WEATHER]
    return _run(directory, "tiny-roads", arguments)


def _run(directory: Path, profile: str, arguments: list[str]) -> JobResults:
    """Run one job by `contrafact submit` on an embedded system with a shipped profile."""
    page = directory / "report.html"
    print("Starting gateway, worker and four model services in this process ...\n")
    with run_embedded(directory / "data", profile) as system:
        os.environ["CONTRAFACT_URL"] = system.base_url
        job = _print_and_run(["submit", *arguments, "--wait"]).splitlines()[0]
        _print_and_run(["report", job, "--out", str(page)])
        with contextlib.closing(Client(system.base_url)) as client:
            picture = draw_finding(client, job, directory / "finding.png")
            measured = client.results(job, {}, limit=1).metrics
    print(f"\nThe report, one page that needs nothing else:  {page}")
    if picture is not None:
        print(f"Its first finding in one picture:              {picture}")
    print("Run it again and it takes seconds, because every model call is recorded.")
    if measured is None:
        raise SystemExit(f"job {job} ended without results")
    return measured


def _print_and_run(arguments: list[str]) -> str:
    """Print a `contrafact` command, run it in this process, print and return what it writes to stdout."""
    print(f"$ contrafact {shlex.join(arguments)}", flush=True)
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        try:
            code = app(arguments, standalone_mode=False)
        except SystemExit as ended:
            code = ended.code
    print(written.getvalue(), end="", flush=True)
    if code:
        raise SystemExit(code)
    return written.getvalue()


if __name__ == "__main__":
    main()
