"""LANCE's loop on any weights, written from the papers and the known structure of their code (no line is copied).

LANCE (arXiv 2305.19164, with null-text inversion 2211.09794 and prompt-to-prompt 2208.01626) runs in single precision.
It optimises the null embedding of each step while the networks' weights stay trainable. Then it samples each edit under
each self-attention fraction separately, the source branch together with the target, both guided. diffusers has no
pipeline for this (DILLEMA's loop is `cost_pipelines.py`).

Each step uses our computation (`StableDiffusion.predict`, attention injection, alignment). Only the loop differs, so
the images are as good as ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffusion_service.alignment import align
from diffusion_service.attention import CrossEdit, Injection
from diffusion_service.editors.inversion import Steps
from diffusion_service.stable_diffusion import StableDiffusion
from shared.media.images import Pixels
from shared.problems import NotFinite

CROSS = 0.8  # share of the steps in which cross-attention follows the source's
TOLERANCE, TOLERANCE_STEP = 1e-5, 2e-5  # squared error that ends a step's optimisation, and its growth per step


@dataclass(frozen=True, slots=True)
class PaperLance:
    """LANCE's parameters; `learning_rate` decays to half."""

    steps: int = 50
    guidance: float = 7.5
    iterations: int = 10
    learning_rate: float = 0.01
    fractions: tuple[float, ...] = (0.4, 0.525, 0.65, 0.775, 0.9)


class LanceLoop:
    """One set of weights, made trainable, as the authors' code leaves them."""

    def __init__(self, weights: StableDiffusion, how: PaperLance) -> None:
        self._weights, self._how = weights, how
        self._steps = Steps.of(weights.sampling.config, how.steps)
        weights.unet.requires_grad_(True)

    def edit(self, image: Pixels, caption: str, prompts: Sequence[str]) -> list[list[Pixels]]:
        """Pictures of each prompt under each fraction."""
        with torch.no_grad():
            path = self._climb(self._weights.encode(image), self._states(caption))
        nulls = self._null_text(path, self._states(caption))
        return [
            [self._sample(path[0], nulls, caption, prompt, fraction) for fraction in self._how.fractions]
            for prompt in prompts
        ]

    def _climb(self, latent: Tensor, states: Tensor) -> list[Tensor]:
        path = [latent]
        for step in reversed(range(len(self._steps))):
            path.append(self._steps.up(step, path[-1], self._predict(path[-1], step, states)))
        return path[::-1]

    def _null_text(self, path: Sequence[Tensor], states: Tensor) -> list[Tensor]:
        """The null embedding of every step; the path is from noise to image."""
        latent, null, nulls = path[0], self._states(""), []
        for step in range(len(self._steps)):
            progress = step / len(self._steps)
            trial = null.detach().clone().requires_grad_()
            optimiser = torch.optim.Adam([trial], lr=self._how.learning_rate * (1 - progress / 2))
            with torch.no_grad():
                conditional = self._predict(latent, step, states)
            for _ in range(self._how.iterations):
                guided = self._guide(self._predict(latent, step, trial), conditional)
                loss = (self._steps.down(step, latent, guided) - path[step + 1]).square().mean()
                optimiser.zero_grad()
                torch.autograd.backward(loss)  # accumulates gradients of all UNet weights, as the authors' code does
                optimiser.step()
                if loss.item() < TOLERANCE + TOLERANCE_STEP * step:
                    break
            null = trial.detach()
            nulls.append(null)
            with torch.no_grad():
                predictions = self._predict(latent.expand(2, -1, -1, -1), step, torch.cat([null, states]))
                latent = self._steps.down(step, latent, self._guide(*predictions[:, None]))
        return nulls

    @torch.no_grad()
    def _sample(self, noise: Tensor, nulls: Sequence[Tensor], caption: str, prompt: str, fraction: float) -> Pixels:
        """The target's picture; the source's picture is also computed, and discarded."""
        states, target_states = self._states(caption), self._states(prompt)
        source, target = noise, noise
        for step in range(len(self._steps)):
            rows = torch.cat([source, source, target, target])
            contexts = torch.cat([states, nulls[step], nulls[step], target_states])
            output = self._predict(rows, step, contexts, self._injection(step, caption, prompt, fraction, noise))
            source = self._steps.down(step, source, self._guide(output[1:2], output[0:1]))
            target = self._steps.down(step, target, self._guide(output[2:3], output[3:4]))
        _, picture = self._weights.pictures(torch.cat([source, target]))
        assert not isinstance(picture, NotFinite)
        return picture

    def _injection(self, step: int, caption: str, prompt: str, fraction: float, noise: Tensor) -> Injection:
        """Rows are the source under its caption, source and target under the null embedding, the target."""
        prompts, device = self._weights.prompts, noise.device
        length = len(prompts.encode("").states)
        alignment = align(prompts.words(caption), prompts.words(prompt), length, "replace")
        follow = float(step < round(CROSS * len(self._steps)))
        inject = step < round(fraction * len(self._steps))
        return Injection(
            sources=1,
            source_of=torch.zeros(1, dtype=torch.long, device=device),
            self_from=torch.zeros(int(inject), dtype=torch.long, device=device),
            largest_self=noise[0, 0].numel() // 4,
            cross=CrossEdit(
                alignment.mapping[None].to(device),
                alignment.share[None].to(device) * follow,
                torch.ones(1, length, device=device),
            ),
        )

    def _predict(self, latents: Tensor, step: int, states: Tensor, injection: Injection | None = None) -> Tensor:
        return self._weights.predict(latents, self._steps.times[step], states, None, (), injection)

    def _guide(self, unconditional: Tensor, conditional: Tensor) -> Tensor:
        return unconditional + self._how.guidance * (conditional - unconditional)

    def _states(self, prompt: str) -> Tensor:
        """The prompt's embedding, 1 × tokens × width, computed again each time."""
        self._weights.prompts.encode.cache_clear()
        return torch.stack([self._weights.prompts.encode(prompt).states.float()])
