"""The steps of an inversion: DDIM inversion up to noise, and the null embeddings that lead back (arXiv 2211.09794)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffusion_service.attention import AttentionMaps, Injection
from diffusion_service.prompts import Conditioning
from diffusion_service.stable_diffusion import Control, StableDiffusion
from diffusion_service.steps import Steps
from shared.schemas.diffusion import NullText

TOLERANCE = 1e-5  # null_text: mean squared error of a step's latent at which its optimisation ends ...
TOLERANCE_GROWTH = 1e-3  # ... and the increase of this tolerance up to the last step


@dataclass(frozen=True, slots=True)
class Optimised:
    """A batch after null-text inversion: the path that guided steps take, and the null embedding of each step.

    Of each row: `evaluations`, and `gain`, the share by which the optimisation lowered the mean squared errors of the
    steps that began above the tolerance, 0 … 1; 1 where none did.
    """

    path: Tensor
    nulls: Tensor
    evaluations: Tensor
    gain: Tensor


@dataclass(frozen=True, slots=True)
class _Fitted:
    """One optimised step: null embeddings and output, and of each row evaluations, first and least loss."""

    null: Tensor
    output: Tensor
    evaluations: Tensor
    first: Tensor
    least: Tensor
    tolerance: float


@dataclass(frozen=True, slots=True)
class SourceBranch:
    """The source branches of one batch, a row per source, with the networks' inputs."""

    weights: StableDiffusion
    steps: Steps
    guidance: float
    prompts: Sequence[Conditioning]
    nulls: Sequence[Conditioning]
    controls: Sequence[Control]
    size: tuple[int, int]
    fixed_shapes: bool = False

    def climb(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """DDIM inversion without guidance: the path from noise to `latents`, and the cross-attention on it."""
        maps = AttentionMaps()
        no_targets = torch.empty(0, dtype=torch.long, device=latents.device)
        watching = Injection(len(latents), no_targets, guided=False, maps=maps)
        states, path = states_of(self.prompts), [latents]
        for step in reversed(range(len(self.steps))):
            output = self._predict(path[-1], step, states, self.prompts, watching)
            path.append(self.steps.up(step, path[-1], output))
        return torch.stack(path[::-1]), maps.semantic(latents[0, 0].numel())

    def optimise(self, path: Tensor, how: NullText) -> Optimised:
        """Null-text inversion (arXiv 2211.09794)."""
        latents, nulls = [path[0]], [states_of(self.nulls).clone()]
        spent = torch.zeros(len(self.prompts), dtype=torch.long)
        first, least = torch.zeros(2, len(self.prompts), device=path.device)
        for step in range(len(self.steps)):
            with torch.no_grad():
                conditional = self._predict(latents[-1], step, states_of(self.prompts), self.prompts)
            fitted = self._fit(how, step, nulls[-1], latents[-1], conditional, path[step + 1])
            latents.append(self.steps.down(step, latents[-1], fitted.output))
            nulls.append(fitted.null)
            spent += 1 + fitted.evaluations
            above = fitted.first > fitted.tolerance
            first += fitted.first.where(above, 0)
            least += fitted.least.where(above, 0)
        gain = (1 - least / first).where(first > 0, 1)
        return Optimised(torch.stack(latents), torch.stack(nulls[1:]), spent, gain.cpu())

    def _fit(
        self, how: NullText, step: int, null: Tensor, latents: Tensor, conditional: Tensor, goal: Tensor
    ) -> _Fitted:
        """The null embeddings that bring a guided step nearest to `goal`.

        Rows are independent: each leaves the batch at the tolerance with its best embedding.
        """
        progress = step / len(self.steps)
        tolerance = TOLERANCE + TOLERANCE_GROWTH * progress
        trial = null.clone().requires_grad_()
        # The learning rate falls to half over the steps, as in the authors' code.
        optimiser = torch.optim.Adam([trial], lr=how.learning_rate * (1 - progress / 2))
        null, output = null.clone(), conditional.clone()
        first = best = torch.full_like(latents[:, 0, 0, 0], torch.inf)
        all_rows = torch.arange(len(null), device=latents.device)
        spent, rows, active = torch.zeros_like(all_rows), all_rows, all_rows
        for iteration in range(how.iterations + 1):
            with torch.set_grad_enabled(iteration < how.iterations):
                unconditional = self.of_rows(rows.tolist())._predict_null(latents[rows], step, trial[rows])
                guided = unconditional + self.guidance * (conditional[rows] - unconditional)
                losses = (self.steps.down(step, latents[rows], guided) - goal[rows]).square().mean(dim=(1, 2, 3))
            first = losses.detach() if iteration == 0 else first
            spent[active] += 1
            better = (losses < best[rows]) & (best[rows] > tolerance)
            improved = rows[better]
            best[improved], output[improved] = losses[better].detach(), guided[better].detach()
            null[improved] = trial[improved].detach()
            active = all_rows[best > tolerance]
            if iteration == how.iterations or not len(active):
                break
            trial.grad = scale_gradient(losses, trial, latents[0].numel())
            optimiser.step()
            spent[active] += 2
            rows = all_rows if self.fixed_shapes else active
        return _Fitted(null, output, spent.cpu(), first, best, tolerance)

    def of_rows(self, rows: Sequence[int]) -> SourceBranch:
        """The branches of some rows alone."""
        if len(rows) == len(self.prompts):
            return self
        return replace(
            self,
            prompts=[self.prompts[row] for row in rows],
            nulls=[self.nulls[row] for row in rows],
            controls=[replace(control, images=control.images[list(rows)]) for control in self.controls],
        )

    def _predict_null(self, latents: Tensor, step: int, states: Tensor) -> Tensor:
        return self._predict(latents, step, states, self.nulls)

    def _predict(
        self,
        latents: Tensor,
        step: int,
        states: Tensor,
        prompts: Sequence[Conditioning],
        injection: Injection | None = None,
    ) -> Tensor:
        added = self.weights.added_conditions(prompts, *self.size)
        return self.weights.predict(latents, self.steps.times[step], states, added, self.controls, injection)


def scale_gradient(losses: Tensor, inputs: Tensor, elements: int) -> Tensor:
    """The gradient of the sum of `losses`, each a mean over so many `elements`, with respect to `inputs`.

    The losses are multiplied by the next power of two above `elements`, and the gradient is divided by it again. The
    gradient of a mean is so small that float16 would round most of its values to zero in the backward pass. Scaling by
    a power of two changes no bit where nothing underflows (arXiv 1710.03740, section 3.2).
    """
    scale = float(2 ** math.ceil(math.log2(elements)))
    (gradient,) = torch.autograd.grad(losses.sum() * scale, inputs)
    return gradient / scale


def states_of(prompts: Sequence[Conditioning]) -> Tensor:
    """Embeddings as rows × tokens × width, in the precision in which they are optimised."""
    return torch.stack([prompt.states.float() for prompt in prompts])
