"""`from contrafact import ...` offers the client and the classes that its methods take."""

from __future__ import annotations

import inspect
import re
import typing

import contrafact
from shared.schemas.base import Contract
from tests.support.paths import REPOSITORY


def test_the_classes_that_the_client_takes_are_public() -> None:
    contracts: set[str] = set()
    for name, method in inspect.getmembers(contrafact.Client, inspect.isfunction):
        if not name.startswith("_"):
            hints = typing.get_type_hints(method)
            hints.pop("return", None)
            contracts |= {
                hint.__name__ for hint in hints.values() if inspect.isclass(hint) and issubclass(hint, Contract)
            }
    assert {"JobRequest", "JobSpec", "ModelSpec"} <= contracts
    assert contracts <= set(contrafact.__all__)
    assert "SuiteFilters" in contrafact.__all__  # a field of SuiteRequest
    assert all(hasattr(contrafact, name) for name in contrafact.__all__)
    assert issubclass(contrafact.Unreachable, contrafact.Problem)


def test_the_documented_example_imports_public_names_alone() -> None:
    page = (REPOSITORY / "docs" / "reference" / "python-client.md").read_text(encoding="utf-8")
    (imported,) = re.findall(r"^from contrafact import (.+)$", page, re.MULTILINE)
    assert set(imported.split(", ")) <= set(contrafact.__all__)
    assert "from contrafact." not in page
    assert "from shared" not in page
