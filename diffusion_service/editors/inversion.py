"""Invert a source image into the path of latents that leads to it: DDIM inversion, `direct` and `null_text`.

DDIM inversion goes from the image's latent to noise under the caption, without guidance. Sampling back with guidance
does not return to the image. There are two remedies; both give the editor the source branch's latent and the null
embedding of every step:

    direct      the latents of the inversion are the source branch; nothing is optimised (PnP inversion, arXiv
                2310.01506, whose added offsets are equivalent: source latent + offset = latent of the inversion)
    null_text   the null embedding of each step is optimised until the guided step follows the inversion
                (arXiv 2211.09794); the source branch consists of the results of those steps

So `direct` reproduces the autoencoder's reconstruction of the image exactly; `null_text` approximates it. The steps are
in `SourceBranch`; inversions are batched and cached.

The steps of an inversion: DDIM inversion up to noise, and the null embeddings that lead back (arXiv 2211.09794).

The steps of DDIM sampling and, backwards, of DDIM inversion, on the noise schedule of the weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from diffusers import DDIMScheduler
from torch import Tensor

from diffusion_service.attention import AttentionMaps, Injection
from diffusion_service.control_images import Source
from diffusion_service.prompts import Conditioning
from diffusion_service.stable_diffusion import Control, StableDiffusion
from shared.media.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.schemas.diffusion import EditControl, NullText


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


CACHED = 32  # inversions; one of 50 steps of Stable Diffusion takes 3 MB, with null_text 15 MB


@dataclass(frozen=True, slots=True)
class InversionKey:
    """Inversions with equal keys share a batch; sizes in pixels."""

    width: int
    height: int
    steps: int
    guidance: float
    null_text: NullText | None  # None: direct
    control: EditControl
    control_scale: float


@dataclass(frozen=True, slots=True)
class InversionItem:
    """A source image and its caption, cut to the text encoder's length."""

    source: Source
    caption: str


@dataclass(frozen=True, slots=True, eq=False)
class Inversion:
    """A source branch.

    `latents` is (steps + 1) × channels × latent height × width, from noise to image; `nulls` is steps × tokens × width;
    `maps` (positions × tokens, on the CPU) the source's cross-attention over all steps; `control` the control image or
    None; `keep` the mask of pixels that must not change, if there is a segmenter; `reconstruction` the end of the
    source branch as pixels. All pixels are at the model's size.
    """

    source: Source
    caption: str
    conditioning: Conditioning
    latents: Tensor
    nulls: Tensor
    maps: Tensor
    control: Pixels | None
    keep: Pixels | None
    reconstruction: Pixels
    evaluations: int


class Inverter:
    """Inverts source images and caches the latest inversions. Several threads may call it concurrently."""

    def __init__(
        self,
        weights: StableDiffusion,
        control: Callable[[Source, EditControl], Pixels | None],
        keep: Callable[[Source], Pixels | None],
        *,
        fixed_shapes: bool = False,
    ) -> None:
        """`control` returns a source's control image or None, `keep` its mask of unchangeable pixels or None.

        With `fixed_shapes` a batch keeps its rows to the end of each optimisation, so that a row's bits do not depend
        on when the other rows converge.
        """
        self._weights = weights
        self._fixed_shapes = fixed_shapes
        self._control = control
        self._keep = keep
        self._cache: dict[tuple[InversionKey, InversionItem], Inversion] = {}
        self._lock = threading.Lock()  # guards `_cache`

    def invert(self, key: InversionKey, items: Sequence[InversionItem]) -> list[Inversion | InvalidInput | NotFinite]:
        """One inversion, or the reason why there is none, per item; cached inversions are reused."""
        results: dict[InversionItem, Inversion | InvalidInput | NotFinite] = {}
        controls: dict[InversionItem, Pixels | None] = {}
        for item in dict.fromkeys(items):
            if (cached := self._look_up(key, item)) is not None:
                results[item] = cached
                continue
            try:
                controls[item] = self._control(item.source, key.control)
            except InvalidInput as problem:
                results[item] = problem
        if controls:
            # Padded to the batch's full size, so that its shape, and therefore its bits, do not depend on the cache.
            batch = [*controls, *[next(iter(controls))] * (len(items) - len(controls))]
            inversions = self._compute(key, batch, [controls[item] for item in batch])
            for item, inversion in zip(controls, inversions, strict=False):
                results[item] = inversion
                if isinstance(inversion, Inversion):
                    self._keep_inversion(key, item, inversion)
        return [results[item] for item in items]

    def _look_up(self, key: InversionKey, item: InversionItem) -> Inversion | None:
        with self._lock:
            cached = self._cache.pop((key, item), None)
            if cached is not None:
                self._cache[key, item] = cached  # the most recently used comes last
            return cached

    def _keep_inversion(self, key: InversionKey, item: InversionItem, inversion: Inversion) -> None:
        with self._lock:
            self._cache[key, item] = inversion
            for oldest in list(self._cache)[:-CACHED]:
                del self._cache[oldest]

    def _compute(
        self, key: InversionKey, batch: Sequence[InversionItem], controls: Sequence[Pixels | None]
    ) -> list[Inversion | InvalidInput | NotFinite]:
        weights = self._weights
        prompts = [weights.prompts.encode(item.caption) for item in batch]
        branch = self._branch(key, prompts, [control for control in controls if control is not None])
        with torch.no_grad():
            path, maps = branch.climb(torch.cat([weights.encode(item.source.image) for item in batch]))
        nulls = states_of(branch.nulls).expand(key.steps, -1, -1, -1)
        spent = torch.full((len(batch),), len(branch.steps))
        round_trips, gain = path[-1], torch.ones(len(batch))
        if key.null_text is not None and key.guidance > 1:
            optimised = branch.optimise(path, key.null_text)
            path, nulls, gain = optimised.path, optimised.nulls, optimised.gain
            spent += optimised.evaluations
        reconstructions = self._reconstruct(key, path[-1], round_trips, gain)
        return [
            reconstruction
            if isinstance(reconstruction, NotFinite | InvalidInput)
            else Inversion(
                source=item.source,
                caption=item.caption,
                conditioning=prompts[row],
                latents=path[:, row],
                nulls=nulls[:, row],
                maps=maps[row].cpu(),
                control=controls[row],
                keep=self._keep(item.source),
                reconstruction=reconstruction,
                evaluations=int(spent[row]),
            )
            for row, (item, reconstruction) in enumerate(zip(batch, reconstructions, strict=True))
        ]

    @torch.no_grad()
    def _reconstruct(
        self, key: InversionKey, latents: Tensor, round_trips: Tensor, gain: Tensor
    ) -> Sequence[Pixels | NotFinite | InvalidInput]:
        """The ends of the source branches as pixels; with `null_text`, only those that optimisation brought near."""
        reconstructions = self._weights.pictures(latents)
        if key.null_text is None:
            return reconstructions
        pictures = self._weights.pictures(round_trips)
        return list(map(partial(_near_enough, key.null_text), reconstructions, pictures, gain.tolist()))

    def _branch(self, key: InversionKey, prompts: Sequence[Conditioning], controls: Sequence[Pixels]) -> SourceBranch:
        weights = self._weights
        return SourceBranch(
            weights=weights,
            steps=Steps.of(weights.sampling.config, key.steps),
            guidance=key.guidance,
            prompts=prompts,
            nulls=[weights.prompts.encode("")] * len(prompts),
            controls=[weights.control(controls, key.control_scale)] if controls else [],
            size=(key.width, key.height),
            fixed_shapes=self._fixed_shapes,
        )


def _near_enough(
    how: NullText, reconstruction: Pixels | NotFinite | InvalidInput, round_trip: Pixels | NotFinite, gain: float
) -> Pixels | NotFinite | InvalidInput:
    """The reconstruction, or why it is not one: the optimisation did nothing, or it is far from the round trip."""
    if not isinstance(reconstruction, np.ndarray) or not isinstance(round_trip, np.ndarray):
        return reconstruction
    if gain < how.least_gain:
        return InvalidInput(
            f"null-text inversion lowers the error of its steps by {gain:.1%}, less than `null_text.least_gain` of "
            f"{how.least_gain:.0%}, so the null embeddings stay almost as they were; try a larger `learning_rate`, "
            "more `iterations`, weights in float32, or choose inversion `direct`"
        )
    error = np.square(reconstruction.astype(np.float64) - round_trip).mean()
    psnr = 10 * np.log10(255**2 / max(error, 1e-9))
    if psnr >= how.least_psnr:
        return reconstruction
    return InvalidInput(
        f"null-text inversion reconstructs the image at {psnr:.1f} dB, below `null_text.least_psnr` of "
        f"{how.least_psnr:g}; allow more `iterations`, another `learning_rate`, or choose inversion `direct`"
    )
