"""Which field of the job form a refusal is about, so that its sentence stands beside that field."""

from __future__ import annotations

import re

from shared.problems import Problem

# The field, and the words by which a refusal names it; the first match counts.
_WORDS = (
    ("task", r"task_description|\btask\b"),
    ("label_map", r"`?label_map|does not know the labels"),
    ("classes", r"meaning of the masks|mask classes|description of their values"),
    ("manifest", r"\bmanifest\b|\blabels?\b"),
    ("masks", r"\bmasks?\b"),
    ("shifts", r"your own changes|\bphrases?\b"),
    ("models", r"model under test|\bmodels?\b|\bsegment|\bclassif"),
    ("methods", r"\bmethods?\b"),
    ("images", r"\bimages?\b|\bfiles?\b|\barchive\b|\bform\b"),
)
FIELDS = tuple(name for name, _ in _WORDS)


def field_of(problem: Problem) -> str:
    """The name of the field, or "" if the sentence names none."""
    return next((name for name, words in _WORDS if re.search(words, problem.detail, re.IGNORECASE)), "")
