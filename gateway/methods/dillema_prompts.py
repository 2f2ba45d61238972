"""What DILLEMA asks the language model, and what it must answer. The tiny language model is trained on these prompts:
tests/contract/test_prompts.py fails when they drift.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Literal

from gateway.methods.asking import Schema, object_schema, text_schema
from gateway.methods.counterfactual import FACTORS, TaskDescription
from shared.schemas.language import Message

Question = Literal["keywords", "alternatives", "rewrite"]

_INTRODUCTION = "You help to test a vision model."
_SYSTEM: dict[Question, str] = {
    "keywords": f"{_INTRODUCTION} List the phrases of the caption that may change while the answer to the task stays "
    "the same. Copy each phrase exactly. Leave out the class and what the task asks for. Factors: subject, object "
    "(another thing nearby), background, adjective, domain (kind of picture), weather (and time of day), other. "
    "The value is the plainest word for the phrase.",
    "alternatives": f"{_INTRODUCTION} List other phrases that can stand in place of the phrase in the caption, each "
    "with another value. The answer to the task must stay the same.",
    "rewrite": f"{_INTRODUCTION} Write the caption with each change made. Copy everything else word for word. The "
    "answer to the task must stay the same.",
}
_EXAMPLE = (
    "Task: name the animal\nClass: horse\n"
    "Caption: One brown horse grazes near stables. Strong winds blow this early morning."
)
_EXAMPLE_TURNS: dict[Question, tuple[str, str]] = {
    "keywords": (
        _EXAMPLE,
        '{"keywords":[{"phrase":"brown","factor":"adjective","value":"brown"},'
        '{"phrase":"near stables","factor":"background","value":"stable"},'
        '{"phrase":"Strong winds","factor":"weather","value":"wind"},'
        '{"phrase":"early morning","factor":"weather","value":"morning"}]}',
    ),
    "alternatives": (
        f"{_EXAMPLE}\nPhrase: near stables",
        '{"alternatives":[{"phrase":"along railways","value":"railway"},{"phrase":"beside rivers","value":"river"}]}',
    ),
    "rewrite": (
        f"{_EXAMPLE}\nChange: brown -> gray",
        '{"caption":"One gray horse grazes near stables. Strong winds blow this early morning."}',
    ),
}


def keyword_messages(task: TaskDescription, caption: str, ground_truth: str | None) -> list[Message]:
    """The question for step 2: what may change."""
    return _messages("keywords", _context(task, caption, ground_truth))


def alternative_messages(task: TaskDescription, caption: str, ground_truth: str | None, phrase: str) -> list[Message]:
    """The question for step 3: what could stand in place of one phrase."""
    return _messages("alternatives", f"{_context(task, caption, ground_truth)}\nPhrase: {phrase}")


def rewrite_messages(
    task: TaskDescription, caption: str, ground_truth: str | None, changes: Sequence[tuple[str, str]]
) -> list[Message]:
    """The question for step 4: the caption with (from phrase, to phrase) changes applied."""
    lines = "".join(f"\nChange: {old} -> {new}" for old, new in changes)
    return _messages("rewrite", _context(task, caption, ground_truth) + lines)


def _context(task: TaskDescription, caption: str, ground_truth: str | None) -> str:
    known = f"\nClass: {ground_truth}" if ground_truth is not None else ""
    return f"Task: {task.text}{known}\nCaption: {caption}"


def _messages(question: Question, asked: str) -> list[Message]:
    example, answer = _EXAMPLE_TURNS[question]
    return [
        Message(role="system", content=_SYSTEM[question]),
        Message(role="user", content=example),
        Message(role="assistant", content=answer),
        Message(role="user", content=asked),
    ]


# JSON schemas: every string and list bounded, keys in the order written.


def keyword_schema(most: int) -> Schema:
    """Schema of step 2's reply: at most `most` keywords."""
    keyword = object_schema(phrase=text_schema(60), factor={"enum": list(FACTORS)}, value=text_schema(40))
    return object_schema(keywords={"type": "array", "items": keyword, "maxItems": most})


def alternative_schema(most: int) -> Schema:
    """Schema of step 3's reply: one to `most` alternatives."""
    alternative = object_schema(phrase=text_schema(60), value=text_schema(40))
    return object_schema(alternatives={"type": "array", "items": alternative, "minItems": 1, "maxItems": most})


def rewrite_schema() -> Schema:
    """Schema of step 4's reply."""
    return object_schema(caption=text_schema(600))


def prompt_digest() -> str:
    """SHA-256 over all prompts, rendered for fixed inputs, and the schemas."""
    task = TaskDescription("task")
    rendered = [
        *keyword_messages(task, "caption", "class"),
        *alternative_messages(task, "caption", None, "phrase"),
        *rewrite_messages(task, "caption", "class", [("old", "new"), ("older", "newer")]),
    ]
    schemas = [keyword_schema(8), alternative_schema(3), rewrite_schema()]
    return hashlib.sha256(json.dumps([[m.model_dump() for m in rendered], schemas]).encode()).hexdigest()
