"""The size of code and documentation as a table of `docs/structure.md`, counted in the files.

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
NOT_THE_PRODUCT = {"tinyworld", "benchmarks", "research", "docs"}

Row = tuple[str, str, str]  # what is counted, before, now


def counts_table(generated: Sequence[str]) -> str:
    """The table, with the same counts from before the gateway was restructured.

    `generated` are the paths below `docs/` of the pages that `docs.generate` writes whole.
    """
    head = ["| | at 4a062d4 (2026-11-22) | now |", "|---|---|---|"]
    words = [
        (
            "words of hand-written pages in `docs/`",
            "48,664 with measurements",
            f"{round(hand_written(generated), -2):,}",
        ),
        ("words of `research/docs/`", "in the row above", _measured_words()),
    ]
    rows = [f"| {' | '.join(row)} |" for row in (*_gateway_rows(), *_size_rows(), *words)]
    return "\n".join([*head, *rows, "", _long_ones()]) + "\n"


def _gateway_rows() -> list[Row]:
    files = [path for path in python_files(ROOT) if path.is_relative_to(ROOT / "gateway")]
    imported = imports()
    return [
        ("places of the gateway (packages and modules at its root)", "80", str(len(imported))),
        ("imports between them", "328", str(sum(map(len, imported.values())))),
        ("lines of the gateway with `dict[str, Any]`", "65", str(_matches(files, ANY_VALUES))),
        (
            "lines of the gateway with `dict` or `Mapping` of `str` to `object`",
            "9",
            str(_matches(files, OBJECT_VALUES)),
        ),
    ]


def _size_rows() -> list[Row]:
    shared = {package.name: names for package in _packages(ROOT) if (names := repeated_classes(package))}
    shared_now = "; ".join(f"{len(names)}, in `{package}`" for package, names in shared.items()) or "0"
    files, functions = _long_files(), _product_functions()
    return [
        (
            "names that public classes of one top-level package share",
            "12, in `tinyworld`; 4, in `gateway`; 1, in `benchmarks`",
            shared_now,
        ),
        ("files over 300 lines; over 500", "17; 0", f"{len(files)}; {sum(count > 500 for _, count in files)}"),
        ("functions over 35 lines; over 60", "29; 0", f"{len(functions)}; {sum(count > 60 for _, count in functions)}"),
    ]


def _long_ones() -> str:
    """The names of long files and of the longest functions."""
    files = ", ".join(f"`{path.relative_to(ROOT).as_posix()}`" for path, _ in _long_files())
    functions = ", ".join(f"`{name}`" for name, count in _product_functions() if count > 60)
    return f"Files over 300 lines: {files or 'none'}. Functions over 60 lines: {functions or 'none'}."


def _long_files() -> list[tuple[Path, int]]:
    """Each file of over 300 lines, with its lines."""
    return [(path, count) for path in python_files(ROOT) if (count := _lines(path)) > LONG_FILE]


def _product_functions() -> list[tuple[str, int]]:
    return long_functions(path for path in python_files(ROOT) if path.relative_to(ROOT).parts[0] not in NOT_THE_PRODUCT)


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
    """Words, as `wc -w` counts them, of all pages that are not generated."""
    return sum(_words(path) for path in docs.rglob("*.md") if path.relative_to(docs).as_posix() not in generated)


def _packages(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/__init__.py") if path.parent.name not in NOT_COUNTED)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def _matches(files: Iterable[Path], pattern: re.Pattern[str]) -> int:
    """Lines that match."""
    return sum(bool(pattern.search(line)) for path in files for line in path.read_text(encoding="utf-8").splitlines())


def _measured_words() -> str:
    words = sum(map(_words, (ROOT / "research" / "docs").glob("*.md")))
    return f"about {round(words, -3):,}"
