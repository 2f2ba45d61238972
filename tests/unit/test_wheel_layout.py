"""Imports in the wheel's copies of our modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shared.package import module
from tests.support.paths import REPOSITORY
from wheel_layout import INSIDE, PUBLIC, nested_imports

SOURCE = '''"""A module that says: from shared import nothing."""

import gateway.api as api
from contrafact.client import Client
from shared import logging as json_logging
from shared.schemas.jobs import (
    JobDetail,
)
from .near import thing

def late() -> None:
    from embedded.library.run import run_test
    text = "from shared import text"
'''


def imported(source: str) -> set[str | None]:
    nodes = list(ast.walk(ast.parse(source)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


def test_imports_are_nested_and_nothing_else_changes() -> None:
    nested = nested_imports(SOURCE, "a.py")
    inside = {"gateway.api", "shared", "shared.schemas.jobs", "embedded.library.run"}
    assert imported(nested) == {f"contrafact._system.{name}" for name in inside} | {"contrafact.client", "near"}
    assert nested.replace("contrafact._system.", "") == SOURCE


def test_an_import_that_binds_a_top_level_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.py:1"):
        nested_imports("import shared.logging\n", "a.py")


@pytest.mark.parametrize("package", [PUBLIC, *INSIDE])
def test_every_module_can_be_nested(package: str) -> None:
    for path in Path(REPOSITORY, package).rglob("*.py"):
        names = imported(nested_imports(path.read_text(encoding="utf-8"), path.name))
        assert not {name for name in names if name and name.partition(".")[0] in INSIDE}, path


def test_every_package_of_a_checkout_is_in_the_wheel() -> None:
    packages = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    assert packages - {"tests", "benchmarks", "research", "docs"} == {PUBLIC, *INSIDE}


def test_a_checkout_imports_its_modules_by_their_own_names() -> None:
    assert module("embedded.run") == "embedded.run"
