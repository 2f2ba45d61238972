"""Plant the faults of `faults.toml` one by one, and see which tests fail.

    python -m research.faults [--only NAME ...] [--wide]

A fault is planted in a git worktree of HEAD. Its tests are the modules that the file names for it, those that mirror
its source file or folder, and those that name its module, the nearest first; the first failure ends a run. The everyday
tests come first, with `--wide` those of the whole package too, then the slow ones without variants on Postgres. At the
end the tests that failed run without a fault: those that fail again (`lamed`) have caught nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_name("faults.toml")
MOST_MODULES = 12  # test modules of a fault
LONGEST = "1800"  # seconds of a run of pytest; a fault may hang a test
EVERYDAY, SLOW = ("-m", "not slow"), ("-m", "slow", "-k", "not postgres")
SUITES: Mapping[tuple[str, ...], Literal["everyday", "all"]] = {EVERYDAY: "everyday", SLOW: "all"}


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` stands once in `file`. `tests`: modules of tests in which it shows, and `slow` single slow tests."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`caught_by`: the test that failed first, of the `suite`; None if the fault survives both. CPU `seconds`."""

    fault: str
    suite: Literal["everyday", "all"]
    caught_by: str | None
    seconds: float


def main() -> None:
    """Try every fault that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="names of faults")
    parser.add_argument("--wide", action="store_true", help="try survivors on the everyday tests of their package")
    options, caught = parser.parse_args(), list[str]()
    faults = [fault for fault in read_faults() if not options.only or fault.name in options.only]
    with worktree() as tree:
        for fault in faults:
            outcome = try_fault(tree, fault, wide=options.wide)
            caught += [outcome.caught_by] if outcome.caught_by else []
            print(json.dumps(asdict(outcome)), flush=True)
        lamed = caught and run_tests(tree, caught, (), stop=False)
    print(json.dumps({"faults": len(faults), "caught": len(caught), "lamed": lamed}))


def read_faults() -> list[Fault]:
    """The faults of the file."""
    rows = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return [Fault(**row | {name: tuple(row.get(name, ())) for name in ("tests", "slow")}) for row in rows]


@contextmanager
def worktree() -> Iterator[Path]:
    """A worktree of HEAD, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), "HEAD"], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def try_fault(tree: Path, fault: Fault, *, wide: bool) -> Outcome:
    """Plant a fault, run its tests, and take it out."""
    used, path, modules = cpu_seconds(), tree / fault.file, find_modules(tree, fault)
    sound = path.read_text(encoding="utf-8")
    package = [str(folder.relative_to(tree)) for folder in tree.glob(f"tests/*/{fault.file.split('/')[0]}")]
    runs = [(modules, EVERYDAY), (package if wide else [], EVERYDAY), (fault.slow, SLOW), (modules, SLOW)]
    path.write_text(planted(sound, fault), encoding="utf-8")
    try:
        tried = ((run_tests(tree, tests, chosen), chosen) for tests, chosen in runs if tests)
        found = next(((failed[0], chosen) for failed, chosen in tried if failed), None)
    finally:
        path.write_text(sound, encoding="utf-8")
    caught_by, chosen = found or (None, SLOW)
    return Outcome(fault.name, SUITES[chosen], caught_by, round(cpu_seconds() - used, 1))


def planted(text: str, fault: Fault) -> str:
    """A file's text with the fault. Raises ValueError unless its place is found exactly once."""
    if (places := text.count(fault.old)) != 1:
        raise ValueError(f"fault {fault.name!r}: {places} places in {fault.file}")
    return text.replace(fault.old, fault.new)


def find_modules(tree: Path, fault: Fault) -> list[str]:
    """The test modules of a fault: those that it names, that of its source file's name, those that name its module."""
    module, folder = Path(fault.file).stem, Path(fault.file).parent
    package, ranks = re.escape(".".join(folder.parts)), {}
    named = re.compile(rf"\b{package}\.{module}\b|from {package} import .*\b{module}\b")
    for test in sorted(set(tree.glob("tests/*/**/test_*.py")) - set(tree.glob("tests/external/**/*"))):
        mirrors = test.parent.relative_to(tree).parts[2:] == folder.parts
        names = named.search(test.read_text(encoding="utf-8")) is not None
        if mirrors or names:
            nearest = mirrors and test.stem == f"test_{module}"
            ranks[str(test.relative_to(tree))] = (not nearest, not (mirrors and names), not names)
    return list(dict.fromkeys([*fault.tests, *sorted(ranks, key=ranks.__getitem__)]))[:MOST_MODULES]


def run_tests(tree: Path, tests: Sequence[str], chosen: Sequence[str], *, stop: bool = True) -> list[str]:
    """The tests that fail, at most one if `stop`; a run that takes too long counts as a failure."""
    options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *(["-x"] * stop), *chosen, *tests]
    variables = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = ["timeout", LONGEST, sys.executable, "-m", "pytest", *options]
    run = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", run.stdout, re.MULTILINE)
    if run.returncode not in (0, 1, 5, 124) and not failed:
        raise RuntimeError(run.stdout[-2000:] + run.stderr[-2000:])
    return failed or ["a run that takes too long"] * (run.returncode == 124)


def cpu_seconds() -> float:
    """Of all processes that were started and have ended."""
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


if __name__ == "__main__":
    main()
