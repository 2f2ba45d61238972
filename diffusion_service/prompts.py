"""Encode prompts for the UNet, in the layouts of Stable Diffusion 1.x/2.x (one encoder) and XL (two).

CLIP's text encoders read a fixed number of tokens (77 with the large weights). A longer prompt is cut after the last
sentence that fits, or if none does, after the last word; the reply contains the text that was read. Prompts are
encoded one at a time, so that an embedding never depends on its neighbours, and cached.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from shared.problems import InvalidInput

Encoder: TypeAlias = CLIPTextModel | CLIPTextModelWithProjection


@dataclass(frozen=True, slots=True)
class Conditioning:
    """One encoded prompt: hidden states of tokens × width, and (XL only) the pooled vector."""

    states: Tensor
    pooled: Tensor | None


class PromptEncoder:
    """The tokenizers and text encoders of one set of weights; one pair for 1.x and 2.x, two pairs for XL."""

    def __init__(self, pairs: Sequence[tuple[CLIPTokenizer, Encoder]], *, zero_empty: bool = False) -> None:
        """With `zero_empty` the empty prompt is encoded as zeros (`force_zeros_for_empty_prompt` in XL's weights)."""
        self._pairs = tuple(pairs)
        self._zero_empty = zero_empty
        self._limits = [
            min(int(tokenizer.model_max_length), int(encoder.config.max_position_embeddings))
            for tokenizer, encoder in pairs
        ]
        self.encode = lru_cache(maxsize=512)(self._encode)
        self.fit = lru_cache(maxsize=512)(self._fit)

    @property
    def networks(self) -> list[Encoder]:
        """The text encoders."""
        return [encoder for _, encoder in self._pairs]

    def _fit(self, prompt: str) -> str:
        """Cut the prompt to as many of its first sentences (failing that, words) as the text encoders can read."""
        if self._fits(prompt):
            return prompt
        for pattern in (r"(?<=[.!?;])\s+", r"\s+"):
            parts = re.split(pattern, prompt.strip())
            while len(parts) > 1:
                parts.pop()
                if self._fits(shorter := " ".join(parts)):
                    return shorter
        raise InvalidInput("the prompt is a single word that is too long for the text encoder; use separate words")

    def words(self, prompt: str) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word, without the begin and end tokens. All of XL's tokenizers split words alike."""
        tokenizer = self._pairs[0][0]
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        added = tokenizer.added_tokens_decoder  # textual inversion adds tokens that are whole words
        words: list[tuple[int, ...]] = [()]
        for number, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
            words[-1] += (number,)
            if piece.endswith("</w>") or number in added:
                words.append(())
        return tuple(word for word in words if word)

    def _fits(self, prompt: str) -> bool:
        return all(
            len(tokenizer(prompt, verbose=False).input_ids) <= limit  # no warning, because longer prompts are cut
            for (tokenizer, _), limit in zip(self._pairs, self._limits, strict=True)
        )

    @torch.inference_mode()
    def _encode(self, prompt: str) -> Conditioning:
        encoded = [self._encode_with(index, prompt) for index in range(len(self._pairs))]
        if len(encoded) == 1:
            return encoded[0]
        pooled = encoded[-1].pooled
        assert pooled is not None
        states = torch.cat([part.states for part in encoded], dim=-1)
        if self._zero_empty and not prompt:
            return Conditioning(torch.zeros_like(states), torch.zeros_like(pooled))
        return Conditioning(states, pooled)

    def _encode_with(self, index: int, prompt: str) -> Conditioning:
        tokenizer, encoder = self._pairs[index]
        # Padded here, because a tokenizer stores its padding setting and other threads count tokens with it.
        ids = tokenizer(prompt).input_ids
        padded = torch.tensor([ids + [tokenizer.pad_token_id] * (self._limits[index] - len(ids))])
        output = encoder(padded.to(encoder.device), output_hidden_states=len(self._pairs) > 1)
        if len(self._pairs) == 1:
            return Conditioning(output.last_hidden_state[0], None)
        # XL conditions on the last layer but one, and on the second encoder's projected end-of-text token.
        pooled = output.text_embeds[0] if isinstance(encoder, CLIPTextModelWithProjection) else None
        return Conditioning(output.hidden_states[-2][0], pooled)
