"""Caption-edit pairs, the perturber's training data: one JSON object per line.

    {"messages": [{"role": "system", "content": "Change the weather ..."}, {"role": "user", "content": "Caption: ..."}],
     "reply": "{\"from\":\"in the rain\",\"to\":\"in hail\", ...}"}

`messages` is the question exactly as the method asks it, so this module is independent of methods. `question` is the
digest of the request that a collected pair answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, JsonValue, ValidationError

from shared.problems import validation_sentence
from shared.schemas.base import Contract
from shared.schemas.language import GenerateRequest, Message, Text

Line = TypeVar("Line", bound=Contract)


class Pair(Contract):
    """A question and the exact reply that the perturber learns (compact JSON, as grammars write it)."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=20)]
    reply: Annotated[Text, Field(min_length=1)]
    question: str = ""


class BadLine(ValueError):
    """A line of a JSONL file that does not fit; the message names file and line and says what is wrong."""


def read_lines(path: Path, kind: type[Line]) -> Iterator[Line]:
    """Parse the file's lines as `kind`, skipping empty lines. Raises BadLine."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield kind.model_validate_json(line)
            except ValidationError as error:
                raise BadLine(f"{path}, line {number}: {validation_sentence(error.errors())}") from error


def digest_of(request: GenerateRequest) -> str:
    """Digest of a question: equal only for equal requests."""
    return hashlib.sha256(request.model_dump_json().encode()).hexdigest()[:32]


def in_order(value: JsonValue, schema: Mapping[str, JsonValue]) -> JsonValue:
    """Reorder the keys of a reply's objects as in the schema, the only order that the service's grammar allows."""
    properties, items = schema.get("properties"), schema.get("items")
    if isinstance(value, dict) and isinstance(properties, dict):
        inner = {name: part for name, part in properties.items() if isinstance(part, dict) and name in value}
        return {name: in_order(value[name], part) for name, part in inner.items()}
    if isinstance(value, list) and isinstance(items, dict):
        return [in_order(element, items) for element in value]
    return value
