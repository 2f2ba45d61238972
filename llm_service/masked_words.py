"""Words for a gap in a text, by a masked language model (a BERT): weights in this process, batched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from shared.control_words import control_words, refuse_control_words
from shared.problems import InvalidInput, OutOfMemory
from shared.schemas.language import Filling, FillReply, FillRequest, Gap
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher
from shared.weights import Weights

LENGTH_STEP = 16  # texts are padded to multiples of so many tokens; only equal lengths run together
MOST = 100  # words that are kept of each gap
SHORTEST = 2  # letters of a word; vocabularies hold single letters as pieces
_BEGINNINGS = ("Ġ", "▁")  # marks of a word's first piece, in vocabularies that mark it

Candidates = list[tuple[str, float]]


class MaskedWords:
    """A masked language model with its tokenizer; its batcher's thread is the only one that runs it."""

    def __init__(self, weights: Weights, device: str, make_batcher: MakeBatcher, max_batch: int) -> None:
        """Load weights in Hub layout (safetensors, no remote code). Raises ValueError for a tokenizer without mask."""
        at = {"revision": weights.hub_revision, "subfolder": weights.subfolder}
        self._tokenizer = AutoTokenizer.from_pretrained(weights.location, **at)
        if self._tokenizer.mask_token is None:
            raise ValueError(f"{weights.id} has no mask token; choose a masked language model, such as a BERT")
        model = AutoModelForMaskedLM.from_pretrained(
            weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, variant=weights.variant, **at
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
        found: dict[int, Candidates] = {}
        for length in dict.fromkeys(lengths):
            places = [place for place, other in enumerate(lengths) if other == length]
            asked = [rows[place] for place in places]
            found |= zip(places, await self._batcher.submit_all(asked, key=length, deadline=deadline), strict=True)
        return FillReply(
            fillings=[
                [Filling(word=word, probability=share) for word, share in found[place][: request.most]]
                for place in range(len(rows))
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
    def _run(self, length: int, rows: Sequence[tuple[int, ...]]) -> list[Candidates]:
        try:
            shares = self._shares(length, rows)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(f"the device has too little memory for {len(rows)} texts at once") from error
        best = shares.topk(min(MOST, len(self._ids)))
        return [
            [(self._words[int(self._ids[place])], float(share)) for share, place in zip(*found, strict=True)]
            for found in zip(best.values.cpu(), best.indices, strict=True)
        ]

    def _shares(self, length: int, rows: Sequence[tuple[int, ...]]) -> Tensor:
        """Probabilities (texts × whole words) at the gap of each text."""
        padding, mask = self._tokenizer.pad_token_id or 0, self._tokenizer.mask_token_id
        ids = torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows], device=self._model.device)
        seen = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows], device=self._model.device)
        logits = self._model(input_ids=ids, attention_mask=seen).logits
        gaps = torch.tensor([row.index(mask) for row in rows], device=self._model.device)
        at_gaps: Tensor = logits[torch.arange(len(rows), device=self._model.device), gaps].float()
        return at_gaps.softmax(-1)[:, self._ids].double()


def _whole_words(tokenizer: Any) -> dict[int, str]:
    """The pieces of a vocabulary that are words of their own, of letters alone, by their number."""
    pieces: dict[str, int] = tokenizer.get_vocab()
    marked = any(piece.startswith(_BEGINNINGS) for piece in pieces)
    words = {}
    for piece, number in sorted(pieces.items(), key=lambda item: item[1]):
        word = piece.lstrip("".join(_BEGINNINGS))
        if word.isalpha() and len(word) >= SHORTEST and piece.startswith(_BEGINNINGS) == marked:
            words[number] = word
    return words
