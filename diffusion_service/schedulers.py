"""The supported schedulers of diffusers, with step arguments that make an image depend on its seed only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    TCDScheduler,
    UniPCMultistepScheduler,
)
from torch import Tensor

from shared.problems import InvalidInput
from shared.seeds import derive_seed


class HoldingUniPC(UniPCMultistepScheduler):  # type: ignore[misc]  # diffusers has no types
    """UniPC whose corrector keeps latents that were set between two steps.

    The corrector computes the latents at a time again, from those one step before. Where protection has set them
    (`set_shares`: share of each latent that is set, 0 … 1, broadcast over the batch; None: none), that would undo it.
    """

    set_shares: Tensor | None = None

    def multistep_uni_c_bh_update(self, *args: Any, this_sample: Tensor, **arguments: Any) -> Tensor:
        """The corrected latents; those that were set stay as they are."""
        corrected: Tensor = super().multistep_uni_c_bh_update(*args, this_sample=this_sample, **arguments)
        share, self.set_shares = self.set_shares, None
        return corrected if share is None else share * this_sample + (1 - share) * corrected


# These draw noise within a step, so each row of a batch has its own generator; all others draw none.
DRAWING = {cls.__name__: cls for cls in (LCMScheduler, TCDScheduler)}
SCHEDULERS = {
    cls.__name__: cls
    for cls in (
        DDIMScheduler,
        DPMSolverMultistepScheduler,
        EulerDiscreteScheduler,
        *DRAWING.values(),
        PNDMScheduler,
    )
} | {UniPCMultistepScheduler.__name__: HoldingUniPC}
_EVALUATIONS_PER_RUNGE_KUTTA = 4  # of PNDM
_STEP_OPTIONS = ("eta",)  # an argument of `step`, not part of the configuration; TCD: 0 draws no noise


@dataclass(frozen=True, slots=True)
class Sampling:
    """A class of scheduler with its configuration, and additional arguments of its steps."""

    kind: Any
    config: Mapping[str, Any]
    step_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str | None, options: Mapping[str, Any] | None = None) -> Sampling:
        """The sampling of weights' `config`; `name` and `options` override its class and values.

        Raises ValueError for a class that is not in `SCHEDULERS`, and for options that it does not have.
        """
        name, options = name or str(config["_class_name"]), options or {}
        if name not in SCHEDULERS:
            raise ValueError(f"scheduler {name} is not supported; choose one of {', '.join(sorted(SCHEDULERS))}")
        kind = SCHEDULERS[name]
        of_step = [option for option in _STEP_OPTIONS if name in DRAWING and option in signature(kind.step).parameters]
        available = [*signature(kind.__init__).parameters][1:] + of_step
        if unknown := sorted(set(options) - set(available)):
            raise ValueError(f"scheduler {name} has no option {', '.join(unknown)}; it has {', '.join(available)}")
        return cls(
            kind,
            {**config, **{option: value for option, value in options.items() if option not in of_step}},
            {option: value for option, value in options.items() if option in of_step},
        )

    def start(self, steps: int, device: torch.device) -> Any:
        """Create a scheduler for one batch (they keep state). Raises InvalidInput for an unsupported step count."""
        scheduler = self.kind.from_config(self.config)
        try:
            scheduler.set_timesteps(steps, device=device)
        except ValueError as error:
            raise InvalidInput(f"{self.kind.__name__} cannot take {steps} steps: {error}") from error
        return scheduler

    def step_arguments(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Arguments of `step` for a batch whose rows have these seeds; a row's noise depends on its seed only."""
        if self.kind.__name__ not in DRAWING:
            return {}
        generators = [torch.Generator("cpu").manual_seed(derive_seed("noise within steps", seed)) for seed in seeds]
        return {**self.step_options, "generator": generators}


def steps_until_kept(scheduler: Any, steps: int) -> int:
    """At least `steps` steps, after which the scheduler goes on from the latents that it is given.

    PNDM computes its first steps from several evaluations of the network (arXiv 2202.09778): two for the first one in
    its linear multistep form, four for each of the first three in its Runge-Kutta form. The last of these evaluations
    starts again from the latents before the first, so what is set between them is lost.
    """
    if not isinstance(scheduler, PNDMScheduler):
        return steps
    multistep = bool(scheduler.config.skip_prk_steps)
    group = 2 if multistep else _EVALUATIONS_PER_RUNGE_KUTTA
    grouped = group if multistep else len(scheduler.prk_timesteps)
    return steps if steps >= grouped else math.ceil(steps / group) * group
