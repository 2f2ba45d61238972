"""Sample with one random generator per row, so that a caption does not depend on its batch, and detect NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class NanWatch:
    """A logits processor that records which rows have NaN and replaces it, so that the other rows continue."""

    def __init__(self) -> None:
        self._broken = torch.zeros(0, dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (rows, vocabulary) without NaN."""
        nan = scores.isnan()
        rows = nan.any(dim=-1)
        self._broken = rows if len(self._broken) != len(rows) else self._broken | rows
        return scores.masked_fill(nan, torch.finfo(scores.dtype).min)

    def are_broken(self, images: int) -> list[bool]:
        """Per image, whether any of its rows (one per beam) had NaN."""
        if not len(self._broken):
            return [False] * images
        return [bool(value) for value in self._broken.reshape(images, -1).any(dim=1).tolist()]


class Sampling(NamedTuple):
    """How one row is sampled: `temperature` 0 is greedy, `top_p` 1 keeps all tokens."""

    temperature: float
    top_p: float
    seed: int


class RowNoise:
    """A logits processor that makes greedy decoding sample: argmax(logits + T·Gumbel noise) ~ softmax(logits / T).

    Each row has its own generator on the CPU, so its text depends on its seed only, not on its neighbours or the
    device. Rows with temperature 0 stay greedy; with `top_p` below 1 a row samples from its nucleus.
    """

    def __init__(self, rows: Sequence[Sampling]) -> None:
        self._rows = [(row, torch.Generator().manual_seed(row.seed)) for row in rows]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (rows, vocabulary) with each row's noise added."""
        noisy = scores.float()
        for row, (sampling, generator) in enumerate(self._rows):
            if sampling.temperature > 0:
                if sampling.top_p < 1:
                    noisy[row] = in_nucleus(noisy[row], sampling.temperature, sampling.top_p)
                exponential = torch.empty(scores.shape[-1], dtype=torch.float32).exponential_(generator=generator)
                noisy[row] -= sampling.temperature * exponential.log().to(scores.device)
        return noisy


def in_nucleus(scores: Tensor, temperature: float, top_p: float) -> Tensor:
    """Scores of shape (vocabulary,), −∞ outside the fewest tokens whose softmax(scores / T) sum to at least `top_p`.

    Nucleus sampling of Holtzman et al., arXiv 1904.09751, section 3.1.
    """
    probabilities, tokens = (scores / temperature).softmax(dim=-1).sort(descending=True, stable=True)
    outside = probabilities.cumsum(dim=-1) - probabilities >= top_p  # the tokens before it are enough
    return scores.index_fill(0, tokens[outside], -torch.inf)
