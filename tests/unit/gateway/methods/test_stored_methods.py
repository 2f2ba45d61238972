"""The methods of a job: validated at submission, written as JSON, and read back in the types of their methods."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from gateway.database.columns import MethodsColumn
from gateway.methods import METHODS, JobMethod, UnreadableParameters, read_method
from gateway.methods.paraphrase import REVISION
from gateway.methods.shifts import Shift, ShiftsParameters
from shared.problems import NotFound
from tests.support.paths import REPOSITORY

METHOD = JobMethod("shifts", ShiftsParameters(shifts=(Shift(phrase="at dusk", factor="weather"),), steps=3))


def _written_and_read(methods: list[JobMethod]) -> list[JobMethod] | None:
    column, dialect = MethodsColumn(), sqlite.dialect()
    return column.process_result_value(json.loads(json.dumps(column.process_bind_param(methods, dialect))), dialect)


def test_a_method_is_the_same_when_it_is_read_from_its_row() -> None:
    assert _written_and_read([METHOD]) == [METHOD]


@pytest.mark.parametrize("name", ["dillema", "lance", "lance-r", "shifts"])
def test_paraphrases_of_a_language_model_have_a_revision_of_their_own(name: str) -> None:
    by_model = read_method(name, {"reference": "sham", "paraphrase": "model"})
    assert by_model.revision == f"{METHODS[name].revision}-{REVISION}"
    for others in ({"reference": "sham", "paraphrase": "rules"}, {"reference": "null", "paraphrase": "model"}):
        assert read_method(name, {**others}).revision == METHODS[name].revision


def test_equal_rows_are_validated_once() -> None:
    row: dict[str, Any] = {"shifts": [{"phrase": "at dusk", "factor": "weather"}], "steps": 3}
    first, again = read_method("shifts", row), read_method("shifts", dict(reversed(row.items())))
    assert isinstance(first.parameters, ShiftsParameters)
    assert first.parameters is again.parameters
    assert read_method("shifts", {}).parameters == ShiftsParameters()


@pytest.mark.parametrize(("name", "parameters"), [("sepia", {"tone": 3}), ("shifts", {"strength": 0.5})])
def test_a_row_of_another_version_is_shown_as_it_is_and_refuses_to_run(name: str, parameters: dict[str, Any]) -> None:
    method = read_method(name, parameters)
    assert isinstance(method.parameters, UnreadableParameters)
    assert method.choice().parameters == parameters
    assert _written_and_read([method]) == [method]
    with pytest.raises(NotFound):
        _ = method.spec


@pytest.mark.slow
def test_only_methods_name_methods() -> None:
    """All others ask a method's parameters and its `MethodSpec`, so that a new method is one file and one entry."""
    listed = {name for name, spec in METHODS.items() if spec.listed}
    modules = {f"gateway.methods.{name.replace('-', '_')}" for name in listed}
    naming: dict[str, set[str]] = {}
    for path in (REPOSITORY / "gateway").rglob("*.py"):
        place = str(path.relative_to(REPOSITORY))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = {node.value} if isinstance(node, ast.Constant) and node.value in listed else set()
            named |= {node.module} & modules if isinstance(node, ast.ImportFrom) and node.module else set()
            if named and not place.startswith("gateway/methods/"):
                naming.setdefault(place, set()).update(map(str, named))
    assert naming == {
        "gateway/api/examples.py": {"dillema"},
        "gateway/jobs/choices.py": {"instruct"},  # weights
        "gateway/web/form_fields.py": {"shifts"},  # a field of the form
        "gateway/web/home.py": {"shifts"},
    }
