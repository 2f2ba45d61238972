"""The steps of DDIM sampling and, backwards, of DDIM inversion, on the noise schedule of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from diffusers import DDIMScheduler
from torch import Tensor

from shared.problems import InvalidInput


@dataclass(frozen=True, slots=True)
class Steps:
    """DDIM sampling as a linear equation per step: next latent = keep · latent + gain · network output at `time`.

    Inversion solves the equation for the latent, so it undoes a step exactly if the output is the same. For
    v prediction that holds down to a signal of zero, where the usual formula divides by it.
    """

    times: tuple[int, ...]
    keep: tuple[float, ...]
    gain: tuple[float, ...]

    @classmethod
    def of(cls, scheduler_config: Mapping[str, Any], count: int) -> Steps:
        """The steps of the weights' own noise schedule, spacing and prediction type.

        Raises InvalidInput for epsilon prediction on a schedule with zero signal at its first time.
        """
        config = {**scheduler_config, "clip_sample": False, "thresholding": False}
        scheduler = DDIMScheduler.from_config(config)
        scheduler.set_timesteps(count)
        times = [int(time) for time in scheduler.timesteps]
        levels = [float(scheduler.alphas_cumprod[time]) for time in times] + [float(scheduler.final_alpha_cumprod)]
        kind = scheduler.config.prediction_type
        if kind not in _LINES:
            raise InvalidInput(f"weights of prediction type {kind!r} cannot be inverted; use epsilon or v_prediction")
        if kind == "epsilon" and levels[0] == 0:
            raise InvalidInput("epsilon prediction on a schedule that ends without signal cannot be inverted")
        lines = [_LINES[kind](now, after) for now, after in pairwise(levels)]
        return cls(tuple(times), tuple(keep for keep, _ in lines), tuple(gain for _, gain in lines))

    def __len__(self) -> int:
        return len(self.times)

    def down(self, step: int, latents: Tensor, output: Tensor) -> Tensor:
        """The latents after a step of sampling; step 0 starts from noise."""
        return self.keep[step] * latents + self.gain[step] * output

    def up(self, step: int, latents: Tensor, output: Tensor) -> Tensor:
        """The inverse of `down`."""
        return (latents - self.gain[step] * output) / self.keep[step]


def _epsilon_line(now: float, after: float) -> tuple[float, float]:
    return math.sqrt(after / now), math.sqrt(1 - after) - math.sqrt(after * (1 - now) / now)


def _v_line(now: float, after: float) -> tuple[float, float]:
    keep = math.sqrt(now * after) + math.sqrt((1 - now) * (1 - after))
    return keep, math.sqrt(now * (1 - after)) - math.sqrt(after * (1 - now))


_LINES: Mapping[str, Callable[[float, float], tuple[float, float]]] = {
    "epsilon": _epsilon_line,
    "v_prediction": _v_line,
}
