"""Commands in model cards and profiles exist, and classes have names of their own."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from research.system.folders import ORACLE_WEIGHTS, WEIGHTS
from shared.profiles.profile import SHIPPED
from shared.profiles.weights import REPOSITORY


def test_the_commands_of_cards_and_profiles_exist() -> None:
    files = [
        *ORACLE_WEIGHTS.rglob("README.md"),
        *WEIGHTS.rglob("README.md"),
        *WEIGHTS.rglob("training.json"),
        *SHIPPED.glob("*.toml"),
    ]
    modules = {
        module
        for file in files
        for module in re.findall(r"python -m ((?:research|tinyworld)(?:\.\w+)+)", file.read_text())
    }
    assert "research.train.oracle" in modules
    assert [module for module in sorted(modules) if not runs(module)] == []


def runs(module: str) -> bool:
    """Whether `python -m` finds something to run."""
    spec = find_spec(module)
    return spec is not None and (spec.submodule_search_locations is None or find_spec(f"{module}.__main__") is not None)


@pytest.mark.parametrize(
    ("package", "left_out"),
    [("research", "roads"), ("research", "objects"), ("tinyworld", "roads"), ("tinyworld", "objects")],
)
def test_no_two_classes_of_a_package_share_a_name_but_twins_of_the_domains(package: str, left_out: str) -> None:
    modules = [path for path in Path(REPOSITORY, package).rglob("*.py") if "tests" not in path.parts]
    paths = [path for path in modules if left_out not in (*path.parts[:-1], path.stem)]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
