"""What a model service reads from an HTTP request: the deadline in its header and the JSON body."""

from __future__ import annotations

import time

from fastapi import Request
from pydantic import ValidationError

from shared.endpoints import Request as RequestBody
from shared.problems import InvalidInput, Malformed, validation_sentence

DEADLINE_HEADER = "X-Deadline-Seconds"
DEFAULT_DEADLINE_SECONDS = 300.0
MAX_DEADLINE_SECONDS = 3600.0


def read_deadline(request: Request) -> float:
    """The time, on the clock of `time.monotonic()`, after which the caller no longer needs the reply."""
    text = request.headers.get(DEADLINE_HEADER)
    try:
        seconds = DEFAULT_DEADLINE_SECONDS if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_DEADLINE_SECONDS:
        raise InvalidInput(f"{DEADLINE_HEADER} must be seconds above 0 and up to {MAX_DEADLINE_SECONDS:.0f}: {text!r}")
    return time.monotonic() + seconds


def parse(request_type: type[RequestBody], body: bytes) -> RequestBody:
    """Parse a request from its JSON body; raises Malformed or InvalidInput."""
    try:
        return request_type.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        unreadable = any(item["type"] == "json_invalid" for item in errors)
        raise (Malformed if unreadable else InvalidInput)(validation_sentence(errors)) from error
