"""The one door: a value that satisfies the schema, or a typed problem after one retry. Knows no engine."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator
from pydantic import JsonValue

from llm_service.engines import LanguageModel
from llm_service.schemas import checked_validator
from shared.chat_server import Completion
from shared.problems import GenerationFailed
from shared.schemas.language import GenerateReply, GenerateRequest
from shared.seeds import derive_seed

# Greedy decoding would write the same again, so the retry of a greedy request samples.
RETRY_TEMPERATURE = 0.7


async def generate(model: LanguageModel, request: GenerateRequest, deadline: float) -> GenerateReply:
    """The model's reply as a value, from the first attempt whose text is whole and satisfies the schema.

    The second and last attempt has a seed derived from the first's. Raises InvalidInput (a schema that is invalid or
    has an unbounded place) and GenerationFailed.
    """
    validator = checked_validator(request.json_schema)
    faults: list[str] = []
    for attempt, asked in enumerate((request, _retry(request)), start=1):
        written = await model.write(asked, deadline)
        value, fault = read(written, validator)
        if fault is None:
            return GenerateReply(
                value=value,
                text=written.text,
                attempts=attempt,
                prompt_tokens=written.prompt_tokens,
                completion_tokens=written.completion_tokens,
            )
        faults.append(fault)
    raise GenerationFailed(
        f"the language model gave no valid reply in {len(faults)} attempts: {'; then '.join(faults)}",
        members={"faults": list(faults)},
    )


def read(written: Completion, validator: Draft202012Validator) -> tuple[JsonValue, str | None]:
    """The value of a reply and what is wrong with it (None when nothing is)."""
    if not written.finished:
        return None, f"cut off after {written.completion_tokens} tokens (raise max_tokens or shorten the prompt)"
    try:
        value: JsonValue = json.loads(written.text)
    except json.JSONDecodeError as error:
        return None, f"not JSON ({error})"
    violation = next(iter(validator.iter_errors(value)), None)
    return value, None if violation is None else f"{violation.json_path}: {violation.message}"[:300]


def _retry(request: GenerateRequest) -> GenerateRequest:
    changed = {"seed": derive_seed("retry", request.seed), "temperature": request.temperature or RETRY_TEMPERATURE}
    return request.model_copy(update=changed)
