"""DDIM steps: equal to the sampler's, and inverted exactly, also at zero terminal SNR."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler

from diffusion_service.editors.inversion import Steps
from shared.problems import InvalidInput

EPSILON = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "set_alpha_to_one": False}
LAYOUTS = {
    "Stable Diffusion 1.x": {**EPSILON, "steps_offset": 1},
    "v prediction": {**EPSILON, "prediction_type": "v_prediction"},
    "zero terminal SNR": {
        **EPSILON,
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
        "timestep_spacing": "trailing",
    },
}
RANDOM = torch.Generator().manual_seed(1)
LATENTS, OUTPUT = torch.randn(2, 2, 4, 8, 8, generator=RANDOM)


@pytest.mark.parametrize("config", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("count", [1, 10, 50])
def test_steps_are_the_samplers_and_undone_exactly(config: dict[str, Any], count: int) -> None:
    scheduler = DDIMScheduler.from_config({**config, "clip_sample": False})
    scheduler.set_timesteps(count)
    steps = Steps.of(config, count)
    assert steps.times == tuple(scheduler.timesteps)
    for step, time in enumerate(scheduler.timesteps):
        expected = scheduler.step(OUTPUT, time, LATENTS, return_dict=False)[0]
        after = steps.down(step, LATENTS, OUTPUT)
        assert torch.allclose(after, expected, atol=1e-5)
        assert torch.allclose(steps.up(step, after, OUTPUT), LATENTS, atol=1e-3)


def test_without_signal_the_first_step_up_ends_in_the_noise_that_the_output_says() -> None:
    """At a signal of zero v prediction says −x₀, so what remains of the latent is noise; nothing is divided by 0."""
    steps = Steps.of(LAYOUTS["zero terminal SNR"], 25)
    assert steps.times[0] == 999
    assert all(keep > 0.02 for keep in steps.keep)
    level = DDIMScheduler.from_config(LAYOUTS["zero terminal SNR"]).alphas_cumprod[steps.times[1]]
    image, noise = LATENTS, OUTPUT
    assert torch.allclose(steps.up(0, level**0.5 * image + (1 - level) ** 0.5 * noise, -image), noise, atol=1e-4)


def test_a_count_that_does_not_divide_the_schedule_meets_every_time() -> None:
    """diffusers' own step goes to `time − 1000 // count`, which is not the next time then."""
    steps = Steps.of(LAYOUTS["zero terminal SNR"], 16)
    path = [OUTPUT]
    for step in range(16):
        path.append(steps.down(step, path[-1], torch.zeros_like(OUTPUT)))
    for step in reversed(range(16)):
        assert torch.allclose(steps.up(step, path[step + 1], torch.zeros_like(OUTPUT)), path[step], atol=1e-3)


@pytest.mark.parametrize("change", [{"prediction_type": "sample"}, {"rescale_betas_zero_snr": True}])
def test_schedules_that_cannot_be_inverted_are_refused(change: dict[str, Any]) -> None:
    spacing = {"timestep_spacing": "trailing"}
    with pytest.raises(InvalidInput, match="cannot be inverted"):
        Steps.of({**EPSILON, **spacing, **change}, 10)
