"""Text from weights in this process: AutoModelForCausalLM with llguidance's JSON grammars, batched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import llguidance
import llguidance.hf
import torch

from llm_service.causal import load_causal, with_adapter
from llm_service.decoding import Continuation, Decoder, Row
from shared.problems import InvalidInput, NotFinite, OutOfMemory
from shared.profiles.profile import Language
from shared.schemas.language import GenerateRequest, Message
from shared.schemas.service import WeightsInfo
from shared.service.completion import Completion
from shared.service.control_words import control_words, refuse_control_words
from shared.service.devices import Loading
from shared.service.load_progress import reading
from shared.service.model_service import MakeBatcher

LENGTH_STEP = 32  # deterministic batches pad prompts to multiples of this number of tokens
SHORTEST_PREFIX = 16
# Compact JSON, because a weak model would spend its token budget on white space.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


def json_grammar(schema: dict[str, Any]) -> str:
    """Return the grammar of compact JSON that satisfies a schema. Raises ValueError if it cannot be compiled.

    With `no_forcing` the model chooses the tokens of text that the schema determines. Otherwise llguidance chooses
    them, and a model that was trained on another tokenisation of this text may continue badly.
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
        self.name = "the language model"
        self.device = str(model.device)
        self.weights = weights
        self._warm_up()
        self._batcher = make_batcher(self._run, max_batch, kind=lambda key: (key.kind, key.length))

    async def write(self, request: GenerateRequest, deadline: float) -> Completion:
        """Generate one reply under the request's schema. Raises InvalidInput if the prompt leaves no room for one."""
        refuse_control_words(self._control_words, (message.content for message in request.messages))
        prefix, own_tokens = await asyncio.to_thread(self.tokenize, request.messages)
        prompt = len(prefix) + len(own_tokens)
        room = self._longest - LENGTH_STEP - prompt
        if room < 1:
            raise InvalidInput(f"the prompt has {prompt} tokens, the model reads {self._longest}; shorten the messages")
        try:
            grammar = json_grammar(request.json_schema)
        except ValueError as error:
            raise InvalidInput(f"json_schema cannot be compiled: {str(error)[:300]}") from error
        most = min(request.max_tokens, room)
        row = Row(own_tokens, grammar, request.temperature, most, request.seed, request.top_p)
        key = BatchKey("write", prefix, self._padded_length(len(own_tokens)))
        continuation = await self._batcher.submit(row, key=key, deadline=deadline)
        assert isinstance(continuation, Continuation)
        return Completion(
            text=self._tokenizer.decode(continuation.tokens, skip_special_tokens=True),
            finished=continuation.finished,
            prompt_tokens=prompt,
            completion_tokens=len(continuation.tokens),
        )

    async def score(self, texts: Sequence[str], deadline: float) -> list[tuple[float, int]]:
        """Log-likelihood of each text; if there is a beginning-of-text token, all tokens of the text are scored."""
        rows = [self._text_tokens(text) for text in texts]
        keys = [BatchKey("score", (), self._padded_length(len(row))) for row in rows]
        sums: list[float] = [0.0] * len(rows)
        for key in dict.fromkeys(keys):
            indices = [index for index, other_key in enumerate(keys) if other_key == key]
            scores = await self._batcher.submit_all([rows[index] for index in indices], key=key, deadline=deadline)
            for index, value in zip(indices, scores, strict=True):
                assert isinstance(value, float)
                sums[index] = value
        return [(value, len(row) - 1) for value, row in zip(sums, rows, strict=True)]

    def tokenize(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens of the conversation, split where the last message's content begins; rows can share the first part.

        To find the split, the conversation is also rendered with another last message, which works for any template.
        """
        tokens = self._render(messages)
        probe = self._render([*messages[:-1], messages[-1].model_copy(update={"content": "0"})])
        pairs = enumerate(zip(tokens, probe, strict=False))
        common = next(
            (index for index, (token, probe_token) in pairs if token != probe_token), min(len(tokens), len(probe))
        )
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

    def _padded_length(self, length: int) -> int:
        return -(-length // LENGTH_STEP) * LENGTH_STEP if self._fixed else 0

    def _run(
        self, key: BatchKey, items: Sequence[Row | tuple[int, ...]]
    ) -> Sequence[Continuation | float | InvalidInput | NotFinite]:
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
        prefix, own_tokens = self.tokenize([WARM_UP])
        self._decoder.write(prefix, self._padded_length(len(own_tokens)), [Row(own_tokens, grammar, 0.0, 8, 0)])


def load_transformers(loading: Loading[Language]) -> TransformersLanguageModel:
    """Load the profile's weights with its adapter over them. Raises as `llm_service.causal` does."""
    profile = loading.weights
    assert profile.weights is not None
    with reading(profile.weights):
        model, tokenizer, base = load_causal(profile.weights)
    weights = [base]
    if profile.adapter is not None:
        with reading(profile.adapter):
            model, adapter = with_adapter(model, profile.adapter, base)
        weights.append(adapter)
    model.eval().to(loading.device)
    return TransformersLanguageModel(
        model, tokenizer, weights, loading.make_batcher, profile.max_batch, loading.settings.deterministic
    )
