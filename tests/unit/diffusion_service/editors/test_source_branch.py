"""The optimisation of null embeddings, on a network of one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diffusion_service.editors import inversion
from diffusion_service.editors.inversion import SourceBranch, Steps, scale_gradient
from diffusion_service.prompts import Conditioning
from shared.schemas.diffusion import NullText

STEPS = Steps.of({"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}, 2)


@pytest.mark.parametrize(("fixed_shapes", "rows"), [(False, [2, 1, 1, 1]), (True, [2, 2, 2, 2])])
def test_a_row_that_is_done_costs_no_more_passes(
    monkeypatch: pytest.MonkeyPatch, fixed_shapes: bool, rows: list[int]
) -> None:
    monkeypatch.setattr(inversion, "TOLERANCE", 1e-9)
    monkeypatch.setattr(inversion, "TOLERANCE_GROWTH", 0.0)
    passes: list[int] = []

    def predict(self: SourceBranch, latents: Tensor, step: int, states: Tensor) -> Tensor:
        passes.append(len(latents))
        return latents * states.mean(dim=(1, 2)).reshape(-1, 1, 1, 1)

    monkeypatch.setattr(SourceBranch, "_predict_null", predict)
    prompt = Conditioning(torch.ones(3, 4), None)
    weights: Any = None  # `_predict_null` is all that would use them
    branch = SourceBranch(weights, STEPS, 2.0, [prompt] * 2, [prompt] * 2, [], (8, 8), fixed_shapes)
    latents, null = torch.ones(2, 1, 2, 2), torch.ones(2, 3, 4)
    conditional = torch.ones(2, 1, 2, 2)
    goal = STEPS.down(0, latents, conditional)
    goal[1] += 1.0  # the first row is there from the beginning
    fitted = branch._fit(NullText(iterations=3), 0, null, latents, conditional, goal)
    assert passes == rows
    assert fitted.evaluations.tolist() == [1, 10]
    assert torch.equal(fitted.null[0], null[0])
    assert not torch.equal(fitted.null[1], null[1])


def test_in_half_precision_a_small_gradient_is_not_rounded_to_zero() -> None:
    elements = 2**14
    inputs = torch.full((1, elements), 1e-4, requires_grad=True)
    losses = inputs.half().square().mean(dim=1)
    (unscaled,) = torch.autograd.grad(losses.sum(), inputs, retain_graph=True)
    assert not unscaled.any()
    expected = torch.full_like(inputs, 2e-4 / elements)
    assert torch.allclose(scale_gradient(losses, inputs, elements), expected, rtol=0.01, atol=0)
