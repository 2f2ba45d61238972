"""Batched decoding under grammars: every row has its own grammar, sampling, random generator and length limit.

Prompts of one question share their beginning (instructions, worked example), which is computed once and cached. A row's
tokens depend only on its own prompt, its seed and the *shape* of the batch, so with fixed shapes they are reproducible.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from shared.problems import InvalidInput, NotFinite

KEPT_PREFIXES = 8
NOT_FINITE = "the language model's output has NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16"


@dataclass(frozen=True, slots=True)
class Row:
    """One request: the prompt's tokens after the shared beginning, and the grammar that the reply must follow."""

    tokens: tuple[int, ...]
    grammar: str
    temperature: float
    max_tokens: int
    seed: int
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Continuation:
    """A row's new tokens; `finished` when the grammar was completed."""

    tokens: list[int]
    finished: bool


class _Writer:
    """State of one row: its grammar, its generator, its tokens so far."""

    def __init__(self, row: Row, vocabulary: llguidance.LLTokenizer) -> None:
        self._row = row
        self._matcher = llguidance.LLMatcher(vocabulary, row.grammar)
        self.failure: InvalidInput | NotFinite | None = self._fault("compiled")
        self._generator = torch.Generator().manual_seed(row.seed)
        self.tokens: list[int] = []
        self.finished = False

    @property
    def active(self) -> bool:
        """Whether the row needs more tokens."""
        return not self.finished and self.failure is None and len(self.tokens) < self._row.max_tokens

    def choose(self, logits: Tensor) -> int:
        """Sample the next token from softmax(logits / temperature) over what the grammar allows; 0 is greedy.

        argmax(logits + T·Gumbel noise) is such a sample; the noise comes from the row's own generator. With NaN
        among the logits the row fails, because the grammar would turn them into a valid reply.
        """
        if logits.isnan().any():
            self.failure = NotFinite(NOT_FINITE)
            return 0
        allowed_tokens = torch.from_numpy(np.frombuffer(self._matcher.compute_logit_bias(), np.uint8) > 0)
        scores = logits.masked_fill(~allowed_tokens[: len(logits)], -torch.inf)
        if self._row.temperature > 0:
            if self._row.top_p < 1:
                scores = nucleus(scores, self._row.temperature, self._row.top_p)
            noise = torch.empty(len(logits), dtype=torch.float32).exponential_(generator=self._generator)
            scores = scores - self._row.temperature * noise.log()
        token = int(scores.argmax())
        self._matcher.consume_token(token)
        self.failure = self._fault("followed")
        self.tokens.append(token)
        self.finished = self._matcher.is_stopped()
        return token

    def _fault(self, verb: str) -> InvalidInput | None:
        """The error of this row's grammar, if any; it must not affect the other rows of the batch."""
        if not self._matcher.is_error():
            return None
        return InvalidInput(f"json_schema cannot be {verb}: {self._matcher.get_error()[:300]}")


def nucleus(scores: Tensor, temperature: float, top_p: float) -> Tensor:
    """The scores of the fewest tokens whose probabilities at a temperature sum to `top_p`; -inf for the others."""
    probabilities, order = torch.softmax(scores / temperature, dim=0).sort(descending=True)
    dropped = order[probabilities.cumsum(dim=0) - probabilities >= top_p]
    return scores.index_fill(0, dropped, -torch.inf)


class Decoder:
    """A causal language model with its tokenizer's vocabulary for grammars; used by one thread only."""

    def __init__(self, model: Any, vocabulary: llguidance.LLTokenizer, padding: int) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._padding = padding
        self._prefixes: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    @torch.inference_mode()
    def write(
        self, prefix: tuple[int, ...], length: int, rows: Sequence[Row]
    ) -> list[Continuation | InvalidInput | NotFinite]:
        """Continue `prefix` + each row's tokens, left-padded to `length` (0: the longest of the rows).

        A row whose grammar fails gets InvalidInput instead of its tokens, one with NaN NotFinite.
        """
        writers = [_Writer(row, self._vocabulary) for row in rows]
        length = length or max(len(row.tokens) for row in rows)
        padded = [[self._padding] * (length - len(row.tokens)) + list(row.tokens) for row in rows]
        tokens = self._tensor(padded)
        attended = self._tensor(
            [[1] * len(prefix) + [0] * (length - len(row.tokens)) + [1] * len(row.tokens) for row in rows]
        )
        cache = self._cache(prefix, len(rows))
        while True:
            logits = self._forward(tokens, attended, cache)
            next_tokens = [
                writer.choose(scores) if writer.active else self._padding
                for writer, scores in zip(writers, logits, strict=True)
            ]
            if not any(writer.active for writer in writers):
                return [writer.failure or Continuation(writer.tokens, writer.finished) for writer in writers]
            tokens = self._tensor([[token] for token in next_tokens])
            attended = torch.cat([attended, torch.ones_like(tokens)], dim=1)

    @torch.inference_mode()
    def score(self, length: int, rows: Sequence[Sequence[int]]) -> list[float | NotFinite]:
        """Per row, the sum of the natural-log probabilities of all tokens but the first; NotFinite if it is NaN."""
        length = length or max(map(len, rows))
        # Padded on the right: with causal attention no real token attends to it.
        tokens = self._tensor([[*row, *[self._padding] * (length - len(row))] for row in rows])
        logits = self._model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        token_scores = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0].double().cpu()
        sums = [float(values[: len(row) - 1].sum()) for values, row in zip(token_scores, rows, strict=True)]
        return [value if math.isfinite(value) else NotFinite(NOT_FINITE) for value in sums]

    def _forward(self, tokens: Tensor, attended: Tensor, cache: Any) -> Tensor:
        """Logits (rows, vocabulary) after the last of `tokens`, as float32 on the CPU; also extends `cache`."""
        positions = (attended.cumsum(dim=1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        output = self._model(
            input_ids=tokens,
            attention_mask=attended,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return torch.as_tensor(output.logits[:, -1].float().cpu())

    def _cache(self, prefix: tuple[int, ...], rows: int) -> Any:
        """The key-value cache after `prefix`, for `rows` rows; the prefix itself is always computed as one row."""
        if not prefix:
            return DynamicCache(config=self._model.config)
        if prefix not in self._prefixes:
            output = self._model(input_ids=self._tensor([list(prefix)]), use_cache=True, logits_to_keep=1)
            self._prefixes[prefix] = output.past_key_values
            if len(self._prefixes) > KEPT_PREFIXES:
                self._prefixes.popitem(last=False)
        self._prefixes.move_to_end(prefix)
        cache = copy.deepcopy(self._prefixes[prefix])
        cache.batch_repeat_interleave(rows)
        return cache

    def _tensor(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, device=self._model.device)
