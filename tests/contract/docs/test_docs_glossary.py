"""The glossary explains the terms of code, API and pages."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import REPOSITORY

TERMS = (
    "job",
    "task description",
    "kind",
    "source image",
    "ground truth",
    "group",
    "method",
    "edit",
    "factor",
    "value",
    "cell",
    "counterfactual",
    "null arm",
    "sham arm",
    "editor",
    "verdict",
    "model under test",
    "profile",
    "finding",
    "comparison",
    "release",
    "lease",
    "NFE",
    "confirmation",
    "dose",
    "own image",
    "mark",
    "study",
    "rater",
    "consensus",
    "control item",
    "gallery",
    "note",
)


@pytest.mark.parametrize("term", TERMS)
def test_the_glossary_has_the_term(term: str) -> None:
    page = (REPOSITORY / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    entries = [line.partition(":")[0] for line in page.splitlines() if line.startswith("* ")]
    assert term in {name for entry in entries for name in re.findall(r"\*\*([^*]+)\*\*", entry)}
