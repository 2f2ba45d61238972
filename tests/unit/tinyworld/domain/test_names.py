"""Commands with `--domain`, commands in model cards and profiles, and unique names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from shared.profiles import SHIPPED
from shared.weights import REPOSITORY
from tinyworld.domain.names import run_for_domain
from tinyworld.system.folders import WEIGHTS


@pytest.mark.parametrize(
    ("arguments", "ran"),
    [
        ([], "objects"),
        (["--domain", "roads", "reader-a"], "roads"),
        (["--seconds", "2", "--domain=roads"], "roads"),
    ],
)
def test_a_command_runs_for_the_domain_that_it_is_given(
    arguments: list[str], ran: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["command", *arguments])
    calls: list[str] = []
    run_for_domain(objects=lambda: calls.append("objects"), roads=lambda: calls.append("roads"))
    assert calls == [ran]


def test_an_unknown_domain_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["command", "--domain", "seas"])
    with pytest.raises(SystemExit):
        run_for_domain(objects=lambda: None, roads=lambda: None)


def test_the_commands_of_cards_and_profiles_exist() -> None:
    files = [*WEIGHTS.rglob("README.md"), *WEIGHTS.rglob("training.json"), *SHIPPED.glob("*.toml")]
    modules = {module for file in files for module in re.findall(r"python -m (tinyworld(?:\.\w+)+)", file.read_text())}
    assert "tinyworld.train.oracle" in modules
    assert [module for module in sorted(modules) if not runs(module)] == []


def runs(module: str) -> bool:
    """Whether `python -m` finds something to run."""
    spec = find_spec(module)
    return spec is not None and (spec.submodule_search_locations is None or find_spec(f"{module}.__main__") is not None)


@pytest.mark.parametrize(
    ("package", "left_out"), [("tinyworld", "roads"), ("tinyworld", "objects"), ("benchmarks", "")]
)
def test_no_two_classes_of_a_package_share_a_name_but_twins_of_the_domains(package: str, left_out: str) -> None:
    paths = [path for path in Path(REPOSITORY, package).rglob("*.py") if left_out not in (*path.parts[:-1], path.stem)]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
