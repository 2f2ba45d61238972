"""Sampling of captions: the nucleus, and the probabilities of what is drawn from it."""

from __future__ import annotations

import pytest
import torch

from caption_service.in_process import RowNoise, Sampling, in_nucleus

PROBABILITIES = torch.tensor([0.1, 0.5, 0.05, 0.3, 0.05])
LOGITS = PROBABILITIES.log()
DRAWS = 4_000


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [(0.01, {1}), (0.49, {1}), (0.51, {1, 3}), (0.79, {1, 3}), (0.85, {0, 1, 3}), (0.92, {0, 1, 2, 3})],
)
def test_the_nucleus_is_the_fewest_tokens_that_sum_to_top_p(top_p: float, tokens: set[int]) -> None:
    nucleus = in_nucleus(LOGITS, 1.0, top_p)
    assert set(nucleus.isfinite().nonzero().flatten().tolist()) == tokens
    assert torch.equal(nucleus[nucleus.isfinite()], LOGITS[nucleus.isfinite()])


def test_a_low_temperature_narrows_the_nucleus() -> None:
    assert in_nucleus(LOGITS, 0.3, 0.7).isfinite().sum() == 1
    assert in_nucleus(LOGITS, 1.0, 0.7).isfinite().sum() == 2


@pytest.mark.slow
def test_a_row_samples_from_its_nucleus_with_the_models_probabilities() -> None:
    """Beside a greedy row and one that keeps all tokens; the tolerance is four standard errors."""
    rows = [Sampling(1.0, 0.85, 7), Sampling(0.0, 1.0, 7), Sampling(1.0, 1.0, 7)]
    noise = RowNoise(rows)
    drawn = torch.stack([noise(torch.empty(0), LOGITS.repeat(3, 1)).argmax(dim=-1) for _ in range(DRAWS)], dim=1)
    nucleus = torch.tensor([0.1, 0.5, 0.0, 0.3, 0.0]) / 0.9
    for row, expected in enumerate((nucleus, torch.eye(5)[1], PROBABILITIES)):
        frequencies = drawn[row].bincount(minlength=5) / DRAWS
        tolerance = 4 * (expected * (1 - expected) / DRAWS).sqrt()
        assert bool(((frequencies - expected).abs() <= tolerance).all()), (row, frequencies)
