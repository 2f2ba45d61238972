"""Contract of llm_service: constrained generation, log-likelihoods of texts, and words for a gap."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.caption import TopP

Text = Annotated[str, Field(max_length=20_000)]


class Message(Contract):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text


class GenerateRequest(Contract):
    """`POST /v1/generate`. Every string and list of `json_schema` must be bounded (maxLength, maxItems).

    `top_p`: nucleus sampling, only from the most probable tokens whose probabilities at this temperature sum to it.
    """

    messages: Annotated[list[Message], Field(min_length=1, max_length=20)]
    json_schema: dict[str, Any]
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 256
    # Left out at its default, so that calls recorded before this field existed keep their keys.
    top_p: Annotated[TopP, Field(exclude_if=lambda top_p: top_p == 1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class GenerateReply(Contract):
    """`value` satisfies the schema of the request; `text` is what the model wrote; `attempts` is 1 or 2."""

    value: Any
    text: str
    attempts: int
    prompt_tokens: int
    completion_tokens: int


class ScoreRequest(Contract):
    """`POST /v1/score`: log-likelihood of texts under the language model."""

    texts: Annotated[list[Text], Field(min_length=1, max_length=64)]


class ScoreReply(Contract):
    """Per text: sum of natural-log token probabilities and number of tokens scored (perplexity = exp(-sum / n))."""

    log_likelihoods: list[float]
    tokens: list[int]


class Gap(Contract):
    """A text with one word missing: the text before and after it, white space included."""

    before: Text
    after: Text


class FillRequest(Contract):
    """`POST /v1/fill`: the words that a masked language model expects in gaps, at most `most` for each."""

    gaps: Annotated[list[Gap], Field(min_length=1, max_length=64)]
    most: Annotated[int, Field(ge=1, le=100)] = 10


class Filling(Contract):
    """A word and its probability among all tokens of the model's vocabulary."""

    word: str
    probability: float


class FillReply(Contract):
    """Per gap the whole words that fit it, most probable first; no punctuation and no subword tokens."""

    fillings: list[list[Filling]]
