"""LANCE (Prabhu, Yenamandra, Chattopadhyay, Hoffman: arXiv 2305.19164): stress tests by language-guided edits.

Its step 2 stands here: for each factor one question about the caption, answered by edits that change that one thing.
The task description and the class stand in every prompt, with one worked example (one-shot).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from gateway.methods.counterfactual import TaskDescription
from shared.schemas.language import Message

LanceFactor = Literal["subject", "object", "background", "adjective", "domain", "weather"]
LANCE_FACTORS: tuple[LanceFactor, ...] = ("subject", "object", "background", "adjective", "domain", "weather")

# --- The prompts. The tiny language model is trained on them: tests/contract/test_prompts.py fails when they drift.

_SYSTEM = (
    "You help to test a vision model. Write edits of the caption. Each edit changes one thing that belongs to the "
    "factor and nothing else, so that the answer to the task stays the same. Factors: subject (what the picture "
    "is of), object (another thing nearby), background (the place), adjective (colour, size, pattern), domain "
    "(kind of picture), weather (and time of day). Copy from_phrase exactly; to_phrase stands in its place; the "
    "values are the plainest words for both; caption is the whole caption with that edit made and all else word "
    "for word. Write no edits where the caption says nothing of the factor or where the answer could change."
)
_EXAMPLE = (
    "Task: name the animal\nClass: horse\nFactor: background\nEdits: 2\n"
    "Caption:\nOne brown horse grazes near stables. Strong winds blow this early morning."
)
_EXAMPLE_REPLY = (
    '{"edits":[{"from_phrase":"near stables","from_value":"stable","to_phrase":"along railways","to_value":"railway",'
    '"caption":"One brown horse grazes along railways. Strong winds blow this early morning."},'
    '{"from_phrase":"near stables","from_value":"stable","to_phrase":"beside rivers","to_value":"river",'
    '"caption":"One brown horse grazes beside rivers. Strong winds blow this early morning."}]}'
)


def perturb_messages(
    task: TaskDescription, caption: str, ground_truth: str | None, factor: LanceFactor, most: int
) -> list[Message]:
    """The question for step 2: up to `most` edits of the caption that change one thing of a factor.

    The caption begins a line of its own: so its first word reads the same there and in the reply, for any tokenizer.
    """
    known = f"\nClass: {ground_truth}" if ground_truth is not None else ""
    asked = f"Task: {task.text}{known}\nFactor: {factor}\nEdits: {most}\nCaption:\n{caption}"
    return [
        Message(role="system", content=_SYSTEM),
        Message(role="user", content=_EXAMPLE),
        Message(role="assistant", content=_EXAMPLE_REPLY),
        Message(role="user", content=asked),
    ]


# --- What the language model must answer: a JSON schema, every string and list bounded, keys in the order written.


def perturb_schema(most: int) -> dict[str, Any]:
    """Schema of step 2's reply: none to `most` edits, each with phrases, canonical values and the new caption."""
    longest = {"from_phrase": 60, "from_value": 40, "to_phrase": 60, "to_value": 40, "caption": 600}
    edit = _object({name: {"type": "string", "minLength": 1, "maxLength": length} for name, length in longest.items()})
    return _object({"edits": {"type": "array", "items": edit, "maxItems": most}})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def prompt_digest() -> str:
    """SHA-256 over the prompt, rendered for fixed inputs, and the schema."""
    task = TaskDescription("task")
    rendered = [
        message.model_dump()
        for truth in ("class", None)
        for message in perturb_messages(task, "caption", truth, "weather", 2)
    ]
    return hashlib.sha256(json.dumps([rendered, perturb_schema(2)]).encode()).hexdigest()
