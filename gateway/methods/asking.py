"""A question to the language model: schemas of replies, one call, and what was said, for the lineage.

What to ask stands in the method's own file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.methods.counterfactual import Services
from shared.schemas.language import GenerateRequest, Message

Schema = dict[str, Any]
Exchange = Mapping[str, Any]


def text_schema(longest: int) -> Schema:
    """JSON schema of a text of 1 to `longest` characters."""
    return {"type": "string", "minLength": 1, "maxLength": longest}


def object_schema(**properties: Schema) -> Schema:
    """JSON schema of an object with exactly these properties, written in this order."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def ask(
    services: Services,
    question: str,
    messages: Sequence[Message],
    schema: Schema,
    *,
    temperature: float,
    max_tokens: int,
    seed: int,
) -> tuple[Any, Exchange]:
    """The value of the language model's reply, which satisfies the schema, and the exchange for the lineage."""
    request = GenerateRequest(
        messages=list(messages), json_schema=schema, temperature=temperature, max_tokens=max_tokens, seed=seed
    )
    reply = services.generate(request)
    exchange = {
        "question": question,
        "messages": [message.model_dump() for message in messages],
        "reply": reply.text,
        "temperature": temperature,
        "seed": seed,
        "attempts": reply.attempts,
    }
    return reply.value, exchange
