"""Run the parts of `tests/parts.toml`, and keep in `tests/parts-green.json` when each was last green.

    python -m tests.support.run_parts run [PART ...]      # these parts, or all, one after the other
    python -m tests.support.run_parts show                # the table
    python -m tests.support.run_parts affected [BASE]     # parts whose code changed since BASE, or since each was green
    python -m tests.support.run_parts due --minutes 5     # for CI: the part longest not green, and another by turns

A part that passes on a clean checkout is entered into the table, which is committed like code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

from tests.support.parts import ROOT, Part, files_of, load_parts

TABLE = ROOT / "tests" / "parts-green.json"
STALE = timedelta(days=7)
NO_TESTS = 5  # pytest's exit status
_HANG = ("-o", "faulthandler_timeout=1800", "-o", "faulthandler_exit_on_timeout=true")


@dataclass(frozen=True)
class Green:
    """A pass of a part. CPU seconds are those of processes that were waited for."""

    commit: str
    at: str
    processor: str
    wall_seconds: int
    cpu_seconds: int
    passed: int
    skipped: int

    def older_than(self, age: timedelta, now: datetime) -> bool:
        """Whether the pass is longer ago than that."""
        return now - datetime.fromisoformat(self.at) > age


Table = Mapping[str, Green]


def read_table(file: Path) -> Table:
    """The last pass of each part that ever passed."""
    if not file.exists():
        return {}
    return {name: Green(**fields) for name, fields in json.loads(file.read_text(encoding="utf-8")).items()}


def write_pass(file: Path, name: str, green: Green) -> None:
    """Enter a pass into the table."""
    table = {**read_table(file), name: green}
    rows = {part: asdict(table[part]) for part in sorted(table)}
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    whole.replace(file)


def minutes(part: Part, table: Table) -> float:
    """How long a part takes, as measured or else as estimated."""
    return table[part.name].wall_seconds / 60 if part.name in table else part.minutes


def oldest_first(parts: Iterable[Part], table: Table) -> list[Part]:
    """The parts in the order of their last pass; those that never passed come first, the quickest of them first."""
    return sorted(parts, key=lambda part: (table[part.name].at if part.name in table else "", minutes(part, table)))


def due(parts: Iterable[Part], table: Table, budget: float, turn: int) -> list[Part]:
    """The part longest not green that fits into `budget` minutes, and another that fits beside it, by turns."""
    able = [part for part in parts if not part.missing]
    fitting = [part for part in oldest_first(able, table) if minutes(part, table) <= budget]
    if not fitting:
        return []
    first = fitting[0]
    others = [part for part in fitting[1:] if minutes(part, table) <= budget - minutes(first, table)]
    return [first, *others[turn % len(others) :][:1]] if others else [first]


def stale(parts: Iterable[Part], table: Table, now: datetime) -> list[str]:
    """A line for each part that was not green within the last week."""
    lines = []
    for part in parts:
        if part.name not in table:
            lines.append(f"{part.name} was never green")
        elif table[part.name].older_than(STALE, now):
            lines.append(f"{part.name} was last green on {table[part.name].at[:10]}")
    return lines


def affected(parts: Iterable[Part], table: Table, root: Path, base: str | None = None) -> list[str]:
    """The parts that watch a file which changed since `base`, or else since each was green. Never green: affected."""
    changed: dict[str, Sequence[str] | None] = {}
    names = []
    for part in parts:
        since = base or (table[part.name].commit if part.name in table else None)
        if since is not None and since not in changed:
            changed[since] = changed_since(since, root)
        files = changed[since] if since is not None else None
        if files is None or any(part.watches(file) for file in files):
            names.append(part.name)
    return names


def changed_since(commit: str, root: Path) -> Sequence[str] | None:
    """Files that differ from a commit, those that git does not know yet included; None if the commit is unknown."""
    if _git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    different = _git(root, "diff", "--name-only", "--no-renames", commit) or ""
    new = _git(root, "ls-files", "--others", "--exclude-standard") or ""
    return [*different.splitlines(), *new.splitlines()]


def clean_commit(root: Path) -> str | None:
    """The commit that is checked out, or None if files differ from it, the table left aside."""
    if _git(root, "status", "--porcelain", "--", ".", f":!{TABLE.relative_to(ROOT)}") != "":
        return None
    return (_git(root, "rev-parse", "HEAD") or "").strip() or None


def run_part(part: Part) -> bool:
    """Run a part, print what it took, and enter a pass into the table. False if a test failed or none could run."""
    if part.missing:
        print(f"{part.name} cannot run on this machine: it has no {part.missing}")
        return False
    before = clean_commit(ROOT)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", *_HANG, f"--junit-xml={report}"]
        used, began = _child_cpu_seconds(), time.monotonic()
        status = subprocess.run(
            [*command, "--part", part.name, *files_of(part.name)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        ).returncode
        wall, cpu = round(time.monotonic() - began), round(_child_cpu_seconds() - used)
        passed, skipped = _counts(report) if status == 0 else (0, 0)
    print(f"{part.name}: {passed} passed, {skipped} skipped, {wall} s, {cpu} CPU seconds")
    if status == NO_TESTS:
        print(f"{part.name}: no test of it was found")
    if status != 0 or passed == 0:
        return False
    if skipped:
        print(f"Not entered into {TABLE.name}: tests were skipped.")
        return True
    if before is None or before != clean_commit(ROOT):
        print(f"Not entered into {TABLE.name}: files differ from the commit.")
        return True
    at = datetime.now(UTC).isoformat(timespec="seconds")
    write_pass(TABLE, part.name, Green(before, at, processor(), wall, cpu, passed, skipped))
    return True


def processor() -> str:
    """The processor's name, its widest instructions for networks, and how many cores this process may use."""
    described = Path("/proc/cpuinfo").read_text(encoding="utf-8") if sys.platform == "linux" else ""
    name = re.search(r"^model name\s*: (.+)$", described, re.MULTILINE)
    flags = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX512", "avx2": "AVX2"}
    widest = next((f" ({label})" for flag, label in flags.items() if f" {flag} " in described), "")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return f"{name[1] if name else platform.machine()}{widest}, {cores} cores"


def table_lines(parts: Iterable[Part], table: Table) -> list[str]:
    """The table for people: a line for each part."""
    lines = [f"{'part':10} {'last green':10} {'commit':8} {'wall s':>6} {'CPU s':>6}  {'tests':>5}  processor"]
    for part in parts:
        green = table.get(part.name)
        if green is None:
            lines.append(f"{part.name:10} never                about {part.minutes:g} minutes")
            continue
        times = f"{green.wall_seconds:6} {green.cpu_seconds:6}  {green.passed:5}"
        lines.append(f"{part.name:10} {green.at[:10]} {green.commit[:8]} {times}  {green.processor}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    parts = load_parts()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("parts", nargs="*", metavar="PART")
    commands.add_parser("show")
    commands.add_parser("affected").add_argument("base", nargs="?")
    commands.add_parser("due").add_argument("--minutes", type=float, default=5.0)
    options = parser.parse_args(arguments)
    table = read_table(TABLE)
    if options.command == "run":
        if unknown := [name for name in options.parts if name not in parts]:
            parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts)}")
        failed = [name for name in options.parts or parts if not run_part(parts[name])]
        if failed:
            print(f"not green: {', '.join(failed)}")
        return 1 if failed else 0
    if options.command == "show":
        print("\n".join(table_lines(parts.values(), table)))
    elif options.command == "affected":
        print(*affected(parts.values(), table, ROOT, options.base), sep="\n")
    else:
        turn = int(_git(ROOT, "rev-list", "--count", "HEAD") or 0)
        print(*(part.name for part in due(parts.values(), table, options.minutes, turn)), sep="\n")
        unable = [
            f"{part.name} cannot run on this machine: it has no {part.missing}"
            for part in parts.values()
            if part.missing
        ]
        for line in [*stale(parts.values(), table, datetime.now(UTC)), *unable]:
            print(line, file=sys.stderr)
    return 0


def _counts(report: Path) -> tuple[int, int]:
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    tests, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    return tests - skipped, skipped


def _child_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
