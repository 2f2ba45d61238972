"""Invert a source image into the path of latents that leads to it: DDIM inversion, `direct` and `null_text`.

DDIM inversion goes from the image's latent to noise under the caption, without guidance. Sampling back with guidance
does not return to the image. There are two remedies; both give the editor the source branch's latent and the null
embedding of every step:

    direct      the latents of the inversion are the source branch; nothing is optimised (PnP inversion, arXiv
                2310.01506, whose added offsets are equivalent: source latent + offset = latent of the inversion)
    null_text   the null embedding of each step is optimised until the guided step follows the inversion
                (arXiv 2211.09794); the source branch consists of the results of those steps

So `direct` reproduces the autoencoder's reconstruction of the image exactly; `null_text` approximates it. The steps are
in `source_branch.py`; here inversions are batched and cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from diffusion_service.control_images import Source
from diffusion_service.editors.source_branch import SourceBranch, states_of
from diffusion_service.prompts import Conditioning
from diffusion_service.stable_diffusion import StableDiffusion
from diffusion_service.steps import Steps
from shared.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.schemas.diffusion import EditControl, NullText

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
