"""Requests to a small llm_service."""

from __future__ import annotations

from typing import Any

from shared.schemas.language import GenerateRequest, Message

KEYWORDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "keywords": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "phrase": {"type": "string", "minLength": 1, "maxLength": 12},
                    "factor": {"enum": ["background", "weather"]},
                },
                "required": ["phrase", "factor"],
                "additionalProperties": False,
            },
        },
        "sure": {"type": "boolean"},
    },
    "required": ["keywords", "sure"],
    "additionalProperties": False,
}


SYSTEM = Message(role="system", content="Name the phrases that may change.")


def generate_request(content: str, **changes: Any) -> GenerateRequest:
    fields: dict[str, Any] = {"json_schema": KEYWORDS, "temperature": 1.0, "seed": 1, "max_tokens": 400, **changes}
    return GenerateRequest(messages=[SYSTEM, Message(role="user", content=content)], **fields)
