"""How a method asks a language model: one-shot messages, the schema of the reply, and the exchange for the lineage.

The prompts are in the method's file. A question without a valid reply is asked again with another seed (DILLEMA,
III-A), at most `MAX_REQUESTS` times in all; llm_service makes two attempts at each. Then its edits are refused as
`invalid reply`. No request is repeated as it was, and a model whose fault stays the same is not asked on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from gateway.methods.counterfactual import Exchange, Verdict
from shared.problems import GenerationFailed, validation_sentence
from shared.schemas.language import GenerateRequest, Message
from shared.seeds import derive_seed
from shared.service.endpoints import Services

MAX_REQUESTS = 3
RETRY_TEMPERATURE = 0.7  # of repeated greedy questions, whose first attempt would be the same otherwise

Schema = dict[str, Any]
Reply = TypeVar("Reply")


class InvalidReply(Exception):
    """The language model gave no valid reply. `verdict` refuses the edits, `exchange` is for their lineage."""

    def __init__(self, reason: str, exchange: Exchange) -> None:
        super().__init__(reason)
        self.verdict = Verdict(False, "invalid reply", reason)
        self.exchange = exchange


@dataclass(frozen=True, slots=True)
class Question(Generic[Reply]):
    """A prompt with one worked example; `reply` is the type of the reply's value."""

    name: str
    system: str
    example: str
    example_reply: str
    reply: TypeAdapter[Reply]

    def messages(self, text: str) -> list[Message]:
        """The messages that ask the question about `text`."""
        return [
            Message(role="system", content=self.system),
            Message(role="user", content=self.example),
            Message(role="assistant", content=self.example_reply),
            Message(role="user", content=text),
        ]


def ask(
    services: Services,
    question: Question[Reply],
    messages: Sequence[Message],
    schema: Schema,
    *,
    seed: int,
    max_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
) -> tuple[Reply, Exchange]:
    """The language model's reply, which satisfies the schema, and the exchange.

    The first request has `seed`, `temperature` and `top_p`; repeated ones have seeds derived from it. Raises
    InvalidReply, and what the services raise.
    """
    first = GenerateRequest(
        messages=list(messages),
        json_schema=schema,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
    )
    faults: list[InvalidReply] = []
    for request in (first, *(_repeated(first, number) for number in range(1, MAX_REQUESTS))):
        try:
            reply, exchange = _ask_once(services, question, request)
        except InvalidReply as invalid:
            faults.append(invalid)
            if len(faults) > 1 and invalid.verdict == faults[-2].verdict:
                break
        else:
            if faults:
                exchange["requests"] = len(faults) + 1
            return reply, exchange
    if len(faults) > 1:
        faults[-1].exchange["requests"] = len(faults)
    raise faults[-1]


def _repeated(first: GenerateRequest, number: int) -> GenerateRequest:
    seed = derive_seed("ask again", first.seed, number)
    return first.model_copy(update={"seed": seed, "temperature": first.temperature or RETRY_TEMPERATURE})


def _ask_once(services: Services, question: Question[Reply], request: GenerateRequest) -> tuple[Reply, Exchange]:
    exchange: Exchange = {
        "question": question.name,
        "messages": [message.model_dump() for message in request.messages],
        "reply": "",
        "temperature": request.temperature,
        "seed": request.seed,
    }
    try:
        reply = services.generate(request)
        exchange["reply"], exchange["attempts"] = reply.text, reply.attempts
        return question.reply.validate_python(reply.value), exchange
    except GenerationFailed as problem:
        raise InvalidReply(problem.detail, exchange) from problem
    except ValidationError as error:
        raise InvalidReply(f"its reply does not fit: {validation_sentence(error.errors())}", exchange) from error


def text_schema(max_length: int) -> Schema:
    """JSON schema of a text of 1 to `max_length` characters."""
    return {"type": "string", "minLength": 1, "maxLength": max_length}


def object_schema(**properties: Schema) -> Schema:
    """JSON schema of an object with exactly these properties, written in this order."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def digest_of_prompts(messages: Sequence[Message], schemas: object) -> str:
    """SHA-256 over prompts, rendered for fixed inputs, and the schemas of their replies."""
    rendered = [message.model_dump() for message in messages]
    return hashlib.sha256(json.dumps([rendered, schemas]).encode()).hexdigest()


def revision_of(code_revision: str, prompt_digest: str) -> str:
    """The revision of a method with a language model; it changes with the code's revision and with the prompts."""
    return hashlib.sha256(f"{code_revision}/{prompt_digest}".encode()).hexdigest()[:12]
