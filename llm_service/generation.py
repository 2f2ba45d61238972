"""Generate a value that satisfies a schema with any engine, retrying once."""

from __future__ import annotations

import json
import re

from jsonschema import Draft202012Validator
from pydantic import JsonValue

from llm_service.engines import LanguageModel
from llm_service.schemas import build_validator
from shared.characters import is_storable, storable
from shared.completion import Completion
from shared.problems import GenerationFailed
from shared.schemas.language import GenerateReply, GenerateRequest
from shared.seeds import derive_seed
from shared.server_replies import beginning, count_unusable

# Greedy decoding would repeat the same reply, so the retry of a greedy request samples.
RETRY_TEMPERATURE = 0.7
_MAX_FAULT = 300  # characters
_MAX_TEXT = 100_000  # characters; a reply has at most 4,096 tokens


async def generate(model: LanguageModel, request: GenerateRequest, deadline: float) -> GenerateReply:
    """Return the model's reply as a value, from the first attempt whose text is complete and satisfies the schema.

    The second and last attempt has a seed derived from the first's. Raises InvalidInput (a schema that is invalid or
    unbounded) and GenerationFailed.
    """
    validator = build_validator(request.json_schema)
    faults: list[str] = []
    for attempt, variant in enumerate((request, _retry(request)), start=1):
        completion = await model.write(variant, deadline)
        value, fault = read(completion, validator)
        if fault is None:
            return GenerateReply(
                value=value,
                text=storable(completion.text),
                attempts=attempt,
                prompt_tokens=completion.prompt_tokens,
                completion_tokens=completion.completion_tokens,
            )
        count_unusable(model.name, "invalid reply")
        faults.append(fault)
    quoted = beginning(completion.text or completion.instead)
    raise GenerationFailed(
        f"{model.name} gave no valid reply in {len(faults)} attempts: {'; then '.join(faults)}{quoted}",
        members={"faults": list(faults)},
    )


def read(completion: Completion, validator: Draft202012Validator) -> tuple[JsonValue, str | None]:
    """Parse a reply: its value, and what is wrong with it (None if it is valid)."""
    if not completion.finished:
        return None, f"cut off after {completion.completion_tokens} tokens (raise max_tokens or shorten the prompt)"
    if len(completion.text) > _MAX_TEXT:  # by a server that ignores max_tokens; each edit of the reply keeps its text
        return None, f"longer than {_MAX_TEXT:,} characters"
    try:
        value: JsonValue = _JSON.decode(_json_in(completion.text))
    except (ValueError, RecursionError) as error:  # ValueError also for a number of thousands of digits
        return None, f"not JSON ({error})"[:_MAX_FAULT]
    if not is_storable(value):
        return None, "has U+0000, or half of a surrogate pair, which cannot be stored"
    violation = next(iter(validator.iter_errors(value)), None)
    return value, None if violation is None else f"{violation.json_path}: {violation.message}"[:_MAX_FAULT]


def _json_in(text: str) -> str:
    """The only object or array of a reply that begins or ends with prose ("Here is the JSON: {…}"); else the reply."""
    start = re.search(r"[{\[]", text)
    if start is None:
        return text
    try:
        _, end = _JSON.raw_decode(text, start.start())
    except ValueError:
        return text
    return text if re.search(r"[{}\[\]]", text[end:]) else text[start.start() : end]


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def _retry(request: GenerateRequest) -> GenerateRequest:
    update = {"seed": derive_seed("retry", request.seed), "temperature": request.temperature or RETRY_TEMPERATURE}
    return request.model_copy(update=update)
