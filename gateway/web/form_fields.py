"""Refusals in the job form: which field one is about, and its advice in words for somebody who fills in the form."""

from __future__ import annotations

import re

from gateway.intake.intake import MAP_LABELS, WITHOUT_LABELS
from gateway.jobs.domain import FORCE
from shared.problems import Problem

# The field, and the words by which a refusal names it; the first match counts.
_WORDS = (
    ("ground_truth", r"have no labels, but"),
    ("task", r"task_description|\btask\b"),
    ("label_map", r"`?label_map|does not know the labels"),
    ("classes", r"meaning of the masks|mask classes|description of their values|what (they|the masks) mean"),
    ("manifest", r"\bmanifest\b|\blabels?\b"),
    ("masks", r"\bmasks?\b"),
    ("values", r"\bvalues?\b|FACTOR=VALUE"),
    ("shifts", r"your own changes|\bphrases?\b"),
    ("models", r"model under test|\bmodels?\b|\bsegment|\bclassif"),
    ("methods", r"\bmethods?\b"),
    ("images", r"\bimages?\b|\bfiles?\b|\barchive\b|\bform\b"),
)
FIELDS = tuple(name for name, _ in _WORDS)
NO_LABELS = "The images have no labels"
ALL_THE_SAME = "Test them all the same"
# Advice to a client of the HTTP API, and what to do in the form instead.
_ADVICE = {
    MAP_LABELS: "Give each a class of the model under “Names of classes”",
    WITHOUT_LABELS: f"tick “{NO_LABELS}”",
    FORCE: f"or tick “{ALL_THE_SAME}”",
    "send it as the part `manifest`": "choose it under “Labels”",
    "name `values`, such as weather=night, or set `design` to free": "fill in “Changes of every image”",
    "name `models`": "tick one of the models",
    "give `masks` in it": "fill in “Meaning of their values”",
    "the spec does not say what they mean": "the form does not say what they mean",
    "the spec does not say what the masks mean": "the form does not say what the masks mean",
    "give `masks`, for example": "fill in “Meaning of their values”, for example",
    "the spec announces masks, but no image names its mask": "there is a meaning of masks, but there are no masks",
    "upload each with PUT /images/{digest}?mask=true, and give its digest as `mask` beside that of its image": (
        "choose them under “Mask files”, or clear the meaning"
    ),
    "the spec announces masks, but none was sent": "there is a meaning of masks, but there are no masks",
    "the spec does not say how to count them; give `boxes` in it": (
        "this form cannot say how to count them; send the job by the Python client or the HTTP API"
    ),
    "the spec announces boxes": "the job announces boxes",
    "the spec announces questions": "the job announces questions",
    "the spec does not say how to compare answers; give `questions` in it": (
        "this form cannot say how to compare answers; send the job by the Python client or the HTTP API"
    ),
    ", and give `questions` in the spec, which may be `{}`": ", and send the job by the Python client or the HTTP API",
    "or send them as parts, -F masks=@a.png beside -F images=@a.jpg": "or choose them under “Mask files”",
    "list their values in `masks.void`": "list their values in `void` of “Meaning of their values”",
    "add it to `masks.classes`, or to `masks.void`": "add it to `classes` or `void` of “Meaning of their values”",
    ", or upload them one by one with PUT /images/{digest}": "",
}


def for_form(problem: Problem) -> Problem:
    """The same problem, its `detail` with advice that the form can take and without marks of code. Changes it."""
    for advice, instead in _ADVICE.items():
        problem.detail = problem.detail.replace(advice, instead)
    problem.detail = problem.detail.replace("`", "")
    return problem


def field_of(problem: Problem) -> str:
    """The name of the field, or "" if the sentence names none."""
    return next((name for name, words in _WORDS if re.search(words, problem.detail, re.IGNORECASE)), "")
