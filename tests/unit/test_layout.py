"""The tests' own layout: test modules share code through `tests/support` and conftest alone."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.paths import REPOSITORY


def imported(path: Path) -> set[str]:
    """The modules that a file imports, by their full names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_no_test_module_imports_another() -> None:
    for path in (REPOSITORY / "tests").rglob("*.py"):
        within = {name for name in imported(path) if name.split(".")[0] == "tests"}
        assert all(name.startswith("tests.support") for name in within), f"{path} imports {within}"
