"""Refusals of the form advise what the form can take."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gateway.api.forms import MANY_IMAGES
from gateway.web.form_fields import for_form
from shared.problems import InvalidInput
from tests.support.paths import REPOSITORY

# What only a client of the HTTP API can send.
FOREIGN = re.compile(r"PUT /|masks\.(classes|void)|-F |\bspec\b")
SOURCES = (
    "gateway/jobs/submit.py",
    "gateway/jobs/model_choice.py",
    "gateway/intake/masks.py",
    "gateway/intake/mask_files.py",
)


def sentences(path: Path) -> list[str]:
    """The sentences with which a module refuses: what it raises or returns, with "x" for what it fills in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    refusals = [node for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.Return)]
    texts = [
        node for refusal in refusals for node in ast.walk(refusal) if isinstance(node, ast.JoinedStr | ast.Constant)
    ]
    return [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in text.values)
        if isinstance(text, ast.JoinedStr)
        else str(text.value)
        for text in texts
    ]


@pytest.mark.parametrize("path", SOURCES)
def test_no_advice_on_masks_is_for_clients_of_the_api(path: str) -> None:
    refusals = [text for text in sentences(REPOSITORY / path) if FOREIGN.search(text)]
    assert refusals
    for text in refusals:
        assert not FOREIGN.search(for_form(InvalidInput(text)).detail), text


def test_too_many_files_are_sent_as_an_archive() -> None:
    assert "PUT" not in for_form(InvalidInput(MANY_IMAGES)).detail
