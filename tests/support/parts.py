"""The parts of `tests/parts.toml`: what each of them runs, and pytest's option `--part` that selects one."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "research/tests")
RESEARCH = ROOT / "research" / "tests"
POSTGRES = "postgres"


@dataclass(frozen=True)
class Part:
    """A named share of the slow tests. `tests` and `watch` are globs in which `*` also matches slashes."""

    name: str
    about: str
    minutes: float
    watch: tuple[str, ...]
    tests: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()

    @property
    def missing(self) -> str:
        """What this machine lacks of the programs that the part needs; empty if it can run."""
        lacking = [" or ".join(programs) for programs in self.needs if not any(map(shutil.which, programs))]
        return ", ".join(lacking)

    def watches(self, path: str) -> bool:
        """Whether the part must run again when this file changes."""
        return any(fnmatchcase(path, glob) for glob in (*self.watch, *self.tests))


@cache
def load_parts(file: Path = ROOT / "tests" / "parts.toml") -> Mapping[str, Part]:
    """The parts by name, in the order of the file."""
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    shared = document["watched_by_all"]
    return {name: _part(name, shared, **fields) for name, fields in document["part"].items()}


def _part(
    name: str,
    shared: list[str],
    *,
    about: str,
    minutes: float,
    watch: list[str],
    tests: Iterable[str] = (),
    needs: Iterable[Iterable[str]] = (),
) -> Part:
    return Part(name, about, minutes, (*watch, *shared), tuple(tests), tuple(map(tuple, needs)))


def owners(path: str, parts: Mapping[str, Part]) -> list[str]:
    """The parts that run the slow tests of a file: those with the longest glob that matches it."""
    lengths = {
        part.name: max((len(glob) for glob in part.tests if fnmatchcase(path, glob)), default=0)
        for part in parts.values()
    }
    longest = max(lengths.values())
    return [name for name, length in lengths.items() if length == longest > 0]


def modules() -> list[str]:
    """Every test module of the repository, as a path from its root."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("test_*.py"))
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


def files_of(name: str) -> list[str]:
    """The test modules that pytest has to collect for a part."""
    if name == POSTGRES:
        return modules()
    return [file for file in modules() if name in owners(file, load_parts())]


def part_of(item: pytest.Item) -> str | None:
    """The part that runs a test, or None for one of the everyday suite, which has none of the tests of research."""
    if item.get_closest_marker("slow") is None and RESEARCH not in item.path.parents:
        return None
    parameters = getattr(item, "callspec", None)
    if parameters is not None and POSTGRES in parameters.params.values():
        return POSTGRES
    (name,) = owners(item.path.relative_to(ROOT).as_posix(), load_parts())
    return name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=list(load_parts()), help="only the slow tests of this part of tests/parts.toml")


@pytest.hookimpl(trylast=True)  # after hooks that mark tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (part := config.getoption("--part")) is None:
        return
    selected = [item for item in items if part_of(item) == part]
    config.hook.pytest_deselected(items=[item for item in items if part_of(item) != part])
    items[:] = selected
