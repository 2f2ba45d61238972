"""docs/how-to/troubleshooting.md has status and remedy of each type of problem that a service can answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shared.problems import Problem
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "how-to" / "troubleshooting.md"


def problem_types(problem: type[Problem]) -> Iterator[tuple[str, str]]:
    yield problem.name, str(problem.status)
    for kind in problem.__subclasses__():
        if kind.__module__ == Problem.__module__:
            yield from problem_types(kind)


def test_every_problem_type_has_a_remedy() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Problem types")[2]
    assert set(re.findall(r"^\| `([a-z-]+)` \| (\d+) \| .", section, re.MULTILINE)) == set(problem_types(Problem))
