"""docs/reference/problem-types.md has status, cause and remedy of each type of problem that a service can answer."""

from __future__ import annotations

import re

from shared.problems import Problem, problem_types
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "problem-types.md"


def test_every_problem_type_has_a_remedy() -> None:
    types = {(kind.name, str(kind.status)) for kind in problem_types() if kind.__module__ == Problem.__module__}
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \| (\d+) \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)) == types
