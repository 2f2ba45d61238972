"""Requests to a small llm_service."""

from __future__ import annotations

from typing import Any

import httpx

from shared.schemas.language import GenerateReply, GenerateRequest, Message

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


async def generate(client: httpx.AsyncClient, request: GenerateRequest) -> GenerateReply:
    reply = await client.post("/v1/generate", content=request.model_dump_json())
    assert reply.status_code == 200, reply.text
    return GenerateReply.model_validate_json(reply.content)
