"""Words for a gap in a text, by a masked language model (a BERT): weights in this process, batched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from shared.control_words import control_words, refuse_control_words
from shared.load_progress import reading
from shared.problems import InvalidInput, NotFinite, OutOfMemory
from shared.schemas.language import Filling, FillReply, FillRequest, Gap
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher
from shared.weights import Weights

LENGTH_STEP = 16  # texts are padded to multiples of this number of tokens; only equal lengths share a batch
MAX_WORDS = 100  # per gap
MIN_LETTERS = 2  # per word; vocabularies have single letters as tokens
_WORD_STARTS = ("Ġ", "▁")  # prefixes of a word's first token, in vocabularies that have them

Candidates = list[tuple[str, float]]
NOT_FINITE = "the masked language model's output has NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16"


class MaskedWords:
    """A masked language model with its tokenizer; its batcher's thread is the only one that runs it."""

    def __init__(self, weights: Weights, device: str, make_batcher: MakeBatcher, max_batch: int) -> None:
        """Load weights in Hub layout (safetensors, no remote code). Raises ValueError for a tokenizer without mask."""
        at = {"revision": weights.hub_revision, "subfolder": weights.subfolder}
        self._tokenizer = AutoTokenizer.from_pretrained(weights.location, **at)
        if self._tokenizer.mask_token is None:
            raise ValueError(f"{weights.id} has no mask token; choose a masked language model, such as a BERT")
        with reading(weights):
            model = AutoModelForMaskedLM.from_pretrained(
                weights.location,
                dtype=getattr(torch, weights.dtype),
                use_safetensors=True,
                variant=weights.variant,
                **at,
            )
            self._model = model.to(device).eval()
        self.info: WeightsInfo = weights.info("masked words", getattr(model.config, "_commit_hash", None))
        self._control_words = control_words(self._tokenizer)
        self._longest = min(int(self._tokenizer.model_max_length), int(model.config.max_position_embeddings))
        self._words = _whole_words(self._tokenizer)
        self._ids = torch.tensor(list(self._words), device=device)
        self._run(LENGTH_STEP, [self._tokens(Gap(before="A ", after="."))])
        self._batcher = make_batcher(self._run, max_batch)

    async def fill(self, request: FillRequest, deadline: float) -> FillReply:
        """The words that fit each gap. Raises InvalidInput for texts that are too long or hold control words."""
        refuse_control_words(self._control_words, [text for gap in request.gaps for text in (gap.before, gap.after)])
        rows = await asyncio.to_thread(lambda: [self._tokens(gap) for gap in request.gaps])
        lengths = [min(-(-len(row) // LENGTH_STEP) * LENGTH_STEP, self._longest) for row in rows]
        candidates: dict[int, Candidates] = {}
        for length in dict.fromkeys(lengths):
            indices = [index for index, row_length in enumerate(lengths) if row_length == length]
            batch = [rows[index] for index in indices]
            results = await self._batcher.submit_all(batch, key=length, deadline=deadline)
            candidates |= zip(indices, results, strict=True)
        return FillReply(
            fillings=[
                [Filling(word=word, probability=probability) for word, probability in candidates[index][: request.most]]
                for index in range(len(rows))
            ]
        )

    def _tokens(self, gap: Gap) -> tuple[int, ...]:
        row = self._tokenizer(f"{gap.before}{self._tokenizer.mask_token}{gap.after}")["input_ids"]
        if len(row) > self._longest:
            raise InvalidInput(
                f"a text with a gap has {len(row)} tokens, the model reads {self._longest}; send the sentence alone"
            )
        return tuple(row)

    @torch.inference_mode()
    def _run(self, length: int, rows: Sequence[tuple[int, ...]]) -> list[Candidates | NotFinite]:
        try:
            probabilities = self._probabilities(length, rows)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(f"the device has too little memory for {len(rows)} texts at once") from error
        best = probabilities.topk(min(MAX_WORDS, len(self._ids)))
        return [
            [(self._words[int(self._ids[index])], float(value)) for value, index in zip(values, indices, strict=True)]
            if finite
            else NotFinite(NOT_FINITE)
            for values, indices, finite in zip(
                best.values.cpu(), best.indices, probabilities.isfinite().all(dim=1).tolist(), strict=True
            )
        ]

    def _probabilities(self, length: int, rows: Sequence[tuple[int, ...]]) -> Tensor:
        """Probabilities (texts × whole words) at the gap of each text."""
        padding, mask = self._tokenizer.pad_token_id or 0, self._tokenizer.mask_token_id
        ids = torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows], device=self._model.device)
        attended = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows], device=self._model.device)
        logits = self._model(input_ids=ids, attention_mask=attended).logits
        gaps = torch.tensor([row.index(mask) for row in rows], device=self._model.device)
        at_gaps: Tensor = logits[torch.arange(len(rows), device=self._model.device), gaps].float()
        return at_gaps.softmax(-1)[:, self._ids].double()


def _whole_words(tokenizer: Any) -> dict[int, str]:
    """The tokens of a vocabulary that are whole words of letters only, by id."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    marked = any(token.startswith(_WORD_STARTS) for token in vocabulary)
    words = {}
    for token, number in sorted(vocabulary.items(), key=lambda item: item[1]):
        word = token.lstrip("".join(_WORD_STARTS))
        if word.isalpha() and len(word) >= MIN_LETTERS and token.startswith(_WORD_STARTS) == marked:
            words[number] = word
    return words
