"""The size of code and documentation as a table, counted in the files: what `measurements/structure.md` says of today.

Nothing is counted in tests. Counts of words are rounded, so that a small correction of a page does not change them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from docs.places import imports

ROOT = Path(__file__).parents[1]
LONG_FILE, LONG_FUNCTION = 300, 35  # lines
ANY_VALUES = re.compile(r"dict\[str, Any\]")
OBJECT_VALUES = re.compile(r"(?:dict|Mapping)\[str, object\]")
NOT_COUNTED = {"tests", "migrations"}
NOT_THE_PRODUCT = {"tinyworld", "benchmarks", "docs"}


def counts_table(generated: Sequence[str]) -> str:
    """The table, beside the same counts before the gateway was put in order.

    `generated` are the paths below `docs/` of the pages that `docs.generate` writes whole.
    """
    files = list(python_files(ROOT))
    gateway = [path for path in files if path.is_relative_to(ROOT / "gateway")]
    long = [(path, count) for path in files if (count := _lines(path)) > LONG_FILE]
    functions = long_functions(path for path in files if path.relative_to(ROOT).parts[0] not in NOT_THE_PRODUCT)
    shared_names = {package: names for package in _packages(ROOT) if (names := repeated_classes(package))}
    imported = imports()
    rows = [
        ("places of the gateway (packages and modules at its root)", "80", str(len(imported))),
        ("imports between them", "328", str(sum(map(len, imported.values())))),
        ("lines with `dict[str, Any]` in the gateway", "65", str(_matches(gateway, ANY_VALUES))),
        (
            "lines with `dict` or `Mapping` of `str` to `object` in the gateway",
            "6",
            str(_matches(gateway, OBJECT_VALUES)),
        ),
        ("names that public classes of one top-level package share", "23", _by_package(shared_names)),
        ("files over 300 lines; over 500", "18; 0", f"{len(long)}; {sum(count > 500 for _, count in long)}"),
        ("functions over 35 lines; over 60", "31; 1", f"{len(functions)}; {sum(count > 60 for _, count in functions)}"),
        ("words of hand-written pages besides measurements", "34,275", f"{_hundreds(hand_written(generated)):,}"),
        ("words of pages of measurements", "10,146, and parts of other pages", _thousands("measurements/*.md")),
    ]
    table = ["| | at 4a062d4 (2026-11-22) | now |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    names = ", ".join(f"`{path.relative_to(ROOT).as_posix()}`" for path, _ in long)
    longest = ", ".join(f"`{name}`" for name, count in functions if count > 60)
    return "\n".join([*table, f"\nFiles over 300 lines: {names}. Functions over 60 lines: {longest}."]) + "\n"


def python_files(root: Path) -> Iterator[Path]:
    """The files of all packages and of `docs`, and the modules at the root, without tests and migrations."""
    yield from sorted(root.glob("*.py"))
    for package in [*_packages(root), root / "docs"]:
        yield from sorted(path for path in package.rglob("*.py") if not NOT_COUNTED & set(path.relative_to(root).parts))


def long_functions(files: Iterable[Path]) -> list[tuple[str, int]]:
    """Name and lines of each function of over 35 lines, from `def` to its end."""
    return [
        (node.name, lines)
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONG_FUNCTION
    ]


def repeated_classes(package: Path) -> list[str]:
    """Names that several public classes of the package have."""
    names = Counter(
        node.name
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def hand_written(generated: Sequence[str], docs: Path = ROOT / "docs") -> int:
    """Words, as `wc -w` counts them, of all pages that are neither generated nor measurements."""
    pages = (path for path in docs.rglob("*.md") if path.relative_to(docs).parts[0] != "measurements")
    return sum(_words(path) for path in pages if path.relative_to(docs).as_posix() not in generated)


def _packages(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/__init__.py") if path.parent.name not in NOT_COUNTED)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def _matches(files: Iterable[Path], pattern: re.Pattern[str]) -> int:
    """Lines that match."""
    return sum(bool(pattern.search(line)) for path in files for line in path.read_text(encoding="utf-8").splitlines())


def _by_package(names: dict[Path, list[str]]) -> str:
    return "; ".join(f"{len(shared)}, in `{package.name}`" for package, shared in names.items()) or "0"


def _hundreds(count: int) -> int:
    return round(count, -2)


def _thousands(pages: str) -> str:
    return f"about {round(sum(map(_words, (ROOT / 'docs').glob(pages))), -3):,}"
