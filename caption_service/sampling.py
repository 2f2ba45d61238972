"""Sample with one random generator per row, so that a caption does not depend on its batch, and detect NaN."""

from __future__ import annotations

from collections.abc import Sequence

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


class RowNoise:
    """A logits processor that makes greedy decoding sample: argmax(logits + T·Gumbel noise) ~ softmax(logits / T).

    Each row has its own generator on the CPU, so its text depends on its seed only, not on its neighbours or the
    device. Rows with temperature 0 stay greedy.
    """

    def __init__(self, seeds: Sequence[int], temperatures: Sequence[float]) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._temperatures = temperatures

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (rows, vocabulary) with each row's noise added."""
        noisy = scores.float()
        for row, (generator, temperature) in enumerate(zip(self._generators, self._temperatures, strict=True)):
            if temperature > 0:
                exponential = torch.empty(scores.shape[-1], dtype=torch.float32).exponential_(generator=generator)
                noisy[row] -= temperature * exponential.log().to(scores.device)
        return noisy
