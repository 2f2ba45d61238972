"""Text from weights in this process: AutoModelForCausalLM under llguidance's JSON grammars, batched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import llguidance
import llguidance.hf
import torch

from llm_service.causal import load_causal, with_adapter
from llm_service.decoding import Decoder, Row, Written
from shared.chat_server import Completion
from shared.control_words import control_words, refuse_control_words
from shared.devices import choose_device
from shared.problems import InvalidInput, OutOfMemory
from shared.profiles import Language
from shared.schemas.language import GenerateRequest, Message
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher, ServiceSettings

LENGTH_STEP = 32  # deterministic batches pad prompts to multiples of so many tokens
SHORTEST_PREFIX = 16
# Compact JSON: with free white space a weak model fills its budget with it.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


def json_grammar(schema: dict[str, Any]) -> str:
    """The grammar of compact JSON that satisfies a schema. Raises ValueError where there is none.

    `no_forcing`: text that the schema forces may still be written by any tokens. Otherwise it is split into tokens of
    llguidance's choice, which a model that learnt to write it as longer ones does not go on from.
    """
    llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=JSON_STYLE)
    return f'%llguidance {{"no_forcing": true}}\nstart: %json {json.dumps({**schema, "x-guidance": JSON_STYLE})}'


WARM_UP = Message(role="user", content="Say yes.")


class BatchKey(NamedTuple):
    """Rows that may run together. `length` is the padded length of deterministic batches, otherwise 0."""

    kind: Literal["write", "score"]
    prefix: tuple[int, ...]
    length: int


class TransformersLanguageModel:
    """A causal language model with a chat template; its batcher's thread is the only one that runs it."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        weights: Sequence[WeightsInfo],
        make_batcher: MakeBatcher,
        max_batch: int,
        fixed: bool,
    ) -> None:
        config = model.config.get_text_config()
        vocabulary = llguidance.hf.from_tokenizer(tokenizer, n_vocab=config.vocab_size)
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._tokenizer = tokenizer
        self._decoder = Decoder(model, vocabulary, padding)
        self._longest: int = config.max_position_embeddings
        self._fixed = fixed
        self._control_words = control_words(tokenizer)
        self.device = str(model.device)
        self.weights = weights
        self._warm_up()
        self._batcher = make_batcher(self._run, max_batch)

    async def write(self, request: GenerateRequest, deadline: float) -> Completion:
        """One reply under the request's schema, as long as the model has room. Raises InvalidInput when it has none."""
        refuse_control_words(self._control_words, (message.content for message in request.messages))
        prefix, rest = await asyncio.to_thread(self.tokenize, request.messages)
        prompt = len(prefix) + len(rest)
        room = self._longest - LENGTH_STEP - prompt
        if room < 1:
            raise InvalidInput(f"the prompt has {prompt} tokens, the model reads {self._longest}; shorten the messages")
        try:
            grammar = json_grammar(request.json_schema)
        except ValueError as error:
            raise InvalidInput(f"json_schema cannot be compiled: {str(error)[:300]}") from error
        row = Row(rest, grammar, request.temperature, min(request.max_tokens, room), request.seed)
        key = BatchKey("write", prefix, self._padded(len(rest)))
        written = await self._batcher.submit(row, key=key, deadline=deadline)
        assert isinstance(written, Written)
        return Completion(
            text=self._tokenizer.decode(written.tokens, skip_special_tokens=True),
            finished=written.finished,
            prompt_tokens=prompt,
            completion_tokens=len(written.tokens),
        )

    async def score(self, texts: Sequence[str], deadline: float) -> list[tuple[float, int]]:
        """Log-likelihood of each text; with a beginning-of-text token all of its tokens are scored."""
        rows = [self._text_tokens(text) for text in texts]
        keys = [BatchKey("score", (), self._padded(len(row))) for row in rows]
        sums: list[float] = [0.0] * len(rows)
        for key in dict.fromkeys(keys):
            places = [place for place, other in enumerate(keys) if other == key]
            found = await self._batcher.submit_all([rows[place] for place in places], key=key, deadline=deadline)
            for place, value in zip(places, found, strict=True):
                assert isinstance(value, float)
                sums[place] = value
        return [(value, len(row) - 1) for value, row in zip(sums, rows, strict=True)]

    def tokenize(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The conversation's tokens, cut where the last message's content begins, so that the first part can be shared.

        The cut is found by rendering the conversation with another last content, so it works for any chat template.
        """
        tokens = self._render(messages)
        probe = self._render([*messages[:-1], messages[-1].model_copy(update={"content": "0"})])
        pairs = enumerate(zip(tokens, probe, strict=False))
        common = next((place for place, (one, other) in pairs if one != other), min(len(tokens), len(probe)))
        shared = common if SHORTEST_PREFIX <= common < len(tokens) else 0
        return tuple(tokens[:shared]), tuple(tokens[shared:])

    def _render(self, messages: Sequence[Message]) -> list[int]:
        conversation = [message.model_dump() for message in messages]
        return list(
            self._tokenizer.apply_chat_template(
                conversation, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )

    def _text_tokens(self, text: str) -> tuple[int, ...]:
        tokens = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        begin = self._tokenizer.bos_token_id
        row = (*(() if begin is None else (begin,)), *tokens)
        if not 2 <= len(row) <= self._longest - LENGTH_STEP:
            raise InvalidInput(
                f"a text to score must have 1 to {self._longest - LENGTH_STEP - 1} tokens: {len(tokens)}"
            )
        return row

    def _padded(self, length: int) -> int:
        return -(-length // LENGTH_STEP) * LENGTH_STEP if self._fixed else 0

    def _run(self, key: BatchKey, items: Sequence[Row | tuple[int, ...]]) -> Sequence[Written | float | InvalidInput]:
        rows = [item for item in items if isinstance(item, Row)]
        texts = [item for item in items if not isinstance(item, Row)]
        try:
            if key.kind == "write":
                return self._decoder.write(key.prefix, key.length, rows)
            return self._decoder.score(key.length, texts)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(f"the device has too little memory for {len(items)} texts at once") from error

    def _warm_up(self) -> None:
        grammar = llguidance.LLMatcher.grammar_from_json_schema({"enum": ["yes"]}, overrides=JSON_STYLE)
        prefix, rest = self.tokenize([WARM_UP])
        self._decoder.write(prefix, self._padded(len(rest)), [Row(rest, grammar, 0.0, 8, 0)])


def load_transformers(
    profile: Language, settings: ServiceSettings, make_batcher: MakeBatcher
) -> TransformersLanguageModel:
    """Load `profile.weights`, with the profile's adapter over them; see `llm_service.causal` for what is refused."""
    assert profile.weights is not None
    model, tokenizer, base = load_causal(profile.weights)
    weights = [base]
    if profile.adapter is not None:
        model, adapter = with_adapter(model, profile.adapter, base)
        weights.append(adapter)
    model.eval().to(choose_device(torch, settings.device))
    return TransformersLanguageModel(model, tokenizer, weights, make_batcher, profile.max_batch, settings.deterministic)
