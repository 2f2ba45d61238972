"""Rules of the code that no linter states: endpoints are declared once, and class names are unique in a package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from shared.schemas.base import Kind
from shared.service.endpoints import INFO, MODELS, Endpoint, Services
from tests.support.paths import REPOSITORY

SERVICES = ("caption_service", "llm_service", "diffusion_service", "evaluator_service")
PACKAGES = ("contrafact", "gateway", "shared", "embedded", *SERVICES)
DECLARED = {
    *(endpoint.path for endpoint in vars(Services).values() if isinstance(endpoint, Endpoint)),
    INFO.path,
    MODELS.path,
}


def trees(package: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        yield path.relative_to(REPOSITORY), ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", PACKAGES)
def test_endpoints_of_services_are_written_in_one_place(package: str) -> None:
    written = [
        (str(path), text.value)
        for path, tree in trees(package)
        for text in ast.walk(tree)
        if isinstance(text, ast.Constant) and any(text.value == declared for declared in DECLARED)
    ]
    assert {path for path, _ in written} <= {"shared/service/endpoints.py"}, written


def test_pages_build_no_queries() -> None:
    """`sqlalchemy.orm` is allowed, for the type of a session."""
    imports = [
        f"{path}: {alias.name}"
        for path, tree in trees("gateway/web")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "sqlalchemy"
        for alias in node.names
    ]
    assert imports == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_classes_of_a_package_share_a_name(package: str) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def kinds_in(node: ast.AST) -> Iterator[int]:
    """Lines in which a comparison, a pattern, a key or a subscript is the name of a kind of task."""
    operands: list[ast.expr | None] = []
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        operands = node.keys
    elif isinstance(node, ast.Subscript):
        operands = [node.slice]
    elif isinstance(node, ast.MatchValue):
        operands = [node.value]
    for operand in operands:
        for constant in [] if operand is None else ast.walk(operand):
            if isinstance(constant, ast.Constant) and constant.value in get_args(Kind):
                yield constant.lineno


# "segmentation" is also a ControlNet's kind of control.
OTHER_KINDS = {"shared/profiles/diffusion.py", "shared/schemas/diffusion.py"}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["contrafact", "embedded", "shared", "evaluator_service"])
def test_code_branches_on_the_kind_of_task_in_its_own_file_alone(package: str) -> None:
    """Another kind is another file in `kinds/`. import-linter keeps these files to themselves."""
    branches = [
        f"{path}:{line}"
        for path, tree in trees(package)
        if path.parent.name != "kinds" and str(path) not in OTHER_KINDS
        for node in ast.walk(tree)
        if not (isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal")
        for line in kinds_in(node)
    ]
    assert branches == []
