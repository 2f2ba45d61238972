"""Protected classes: find their regions in the source, preserve their shape while rendering, measure the outcome.

`blended` (after blended latent diffusion, arXiv 2206.02779): after each of the first steps, the latents inside the mask
are those of the source, noised to that step's level with the image's own noise. `relit` does the same with a source
whose light is adapted to the new image: its local mean latent inside the mask is set to that of the network's current
prediction. The mask is soft: each latent is weighted by its coverage. With a strength below 1 the last steps are
unconstrained, which reduces seams and differences in light. Pixels are never pasted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from diffusion_service.schedulers import HoldingUniPC
from diffusion_service.segmentation import LabelMap
from shared.media.images import Pixels
from shared.media.regions import Mask, connected_regions, overlap
from shared.problems import InvalidInput
from shared.schemas.diffusion import RegionOutcome

OUTLINE = 0.012  # half the width of the band in which seams are measured along an outline, in shares of the short side
SPREAD = 0.008  # how far the mask extends beyond a protected region, in shares of the short side
BESIDE = 0.05  # width of a region's surroundings, in shares of the short side
LIGHT_REACH = 0.25  # relit: side of the square over which latents are averaged, in shares of the short side


@dataclass(frozen=True, slots=True)
class Region:
    """A connected region (height × width) of a protected class in the source."""

    label: str
    mask: Mask


def find_regions(label_map: LabelMap, labels: Sequence[str], protected: Sequence[str]) -> list[Region]:
    """The regions of the protected classes without specks. Raises InvalidInput for a class that is not a label."""
    if unknown := sorted(set(protected) - set(labels)):
        raise InvalidInput(
            f"the segmenter has no class {', '.join(unknown)} to protect; it has {', '.join(dict.fromkeys(labels))}"
        )
    matches = []
    for label in dict.fromkeys(protected):
        of_label = np.isin(label_map, [index for index, name in enumerate(labels) if name == label])
        matches += [Region(label, mask) for mask in connected_regions(of_label)]
    return matches


def region_outcomes(
    regions: Sequence[Region], label_map: LabelMap, labels: Sequence[str], image: Pixels
) -> tuple[RegionOutcome, ...]:
    """Measure the source's regions in an image (height × width × 3) with the given label map."""
    whole = union(regions, label_map.shape) > 0
    return tuple(
        RegionOutcome(
            iou=_overlap(region, [neighbour for neighbour in regions if neighbour is not region], label_map, labels),
            outline=outline_contrast(image, region.mask),
            inside=mean_colour(image, region.mask),
            around=mean_colour(image, _beside(region.mask) & ~whole),
        )
        for region in regions
    )


def mean_colour(image: Pixels, mask: Mask) -> tuple[float, float, float]:
    """Red, green and blue within a mask; all 0 where it is empty."""
    red, green, blue = image[mask].mean(axis=0, dtype=np.float64) if mask.any() else (0.0, 0.0, 0.0)
    return float(red), float(green), float(blue)


def _beside(mask: Mask) -> Mask:
    reach = max(2, round(BESIDE * min(mask.shape)))
    wide = cv2.dilate(mask.astype(np.uint8), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    return np.asarray(wide > 0) & ~mask


def _overlap(region: Region, neighbours: Sequence[Region], label_map: LabelMap, labels: Sequence[str]) -> float:
    """IoU of a region with its class's connected regions that touch it, excluding other regions of the source."""
    predicted = np.isin(label_map, [index for index, name in enumerate(labels) if name == region.label])
    return overlap(region.mask, [neighbour.mask for neighbour in neighbours], predicted)


def outline_contrast(image: Pixels, mask: Mask) -> float:
    """Mean length of the gradient, in grey levels per pixel, in a band along the outline of a mask.

    The image's border does not count as outline; the result is 0 for a mask without outline.
    """
    half = max(1, round(OUTLINE * min(mask.shape)))
    kernel = np.ones((2 * half + 1, 2 * half + 1), np.uint8)
    piece = mask.astype(np.uint8)
    band = cv2.dilate(piece, kernel) > cv2.erode(piece, kernel)
    if not band.any():
        return 0.0
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    across, along = (cv2.Sobel(gray, cv2.CV_32F, *axis, scale=1 / 8) for axis in ((1, 0), (0, 1)))
    return float(np.hypot(across, along)[band].mean())


def soft_mask(regions: Sequence[Region], shape: tuple[int, int], factor: int) -> Tensor:
    """How far the regions cover each latent: 1 × 1 × latent height × latent width, 0 … 1; `shape` is in pixels."""
    whole = union(regions, shape)
    reach = max(1, round(SPREAD * min(shape)))
    wide = cv2.dilate(whole, np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    coverage = torch.from_numpy(wide).float()[None, None] / 255
    return interpolate(coverage, (shape[0] // factor, shape[1] // factor), mode="area")


def union(regions: Sequence[Region], shape: tuple[int, ...]) -> Pixels:
    """All regions as one mask: height × width, 255 inside."""
    whole = np.zeros(shape, np.bool_)
    for region in regions:
        whole |= region.mask
    return np.where(whole, 255, 0).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Level:
    """Noise level at a time of a schedule: latents = `signal` · clean latents + `noise` · noise of unit variance."""

    signal: float
    noise: float

    @classmethod
    def of(cls, scheduler: Any, time: Tensor | None) -> Level:
        """The level of any diffusers scheduler at a time; None is the end, without noise."""
        if time is None:
            return cls(1.0, 0.0)
        signal_only, noise_only = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
        times = time.reshape(1).cpu()
        signal, noise = (
            scheduler.add_noise(signal_only, noise_only, times),
            scheduler.add_noise(noise_only, signal_only, times),
        )
        return cls(float(signal), float(noise))

    def clean(self, latents: Tensor, predicted: Tensor, kind: str) -> Tensor:
        """The clean latents implied by a network's prediction of a `kind` (epsilon, v_prediction, sample)."""
        size = float(np.hypot(self.signal, self.noise))
        signal, noise, latents = self.signal / size, self.noise / size, latents / size
        if kind == "sample":
            return predicted
        if kind == "v_prediction":
            return signal * latents - noise * predicted
        return (latents - noise * predicted) / signal


@dataclass(frozen=True, slots=True)
class Shape:
    """The protected shape of one source in one image: tensors of 1 × channels × latent height × latent width.

    `mask` has one channel; `noise` is the image's initial noise; protection ends after `until` steps; `relit` selects
    between the two ways.
    """

    source: Tensor
    mask: Tensor
    noise: Tensor
    until: int
    relit: bool

    def restore(self, latents: Tensor, level: Level, predicted_clean: Tensor) -> Tensor:
        """The latents after a step, at `level`, with the source's shape; `predicted_clean` is the step's prediction."""
        clean = relit(self.source, predicted_clean, self.mask) if self.relit else self.source
        noised = level.signal * clean + level.noise * self.noise
        return self.mask * noised + (1 - self.mask) * latents


def restore_shapes(
    shapes: Mapping[int, Shape], step: int, scheduler: Any, before: Tensor, predicted: Tensor, latents: Tensor
) -> Tensor:
    """The latents (batch × channels × height × width) after a step with protected shapes restored.

    `shapes` are by row; other rows keep their bits. `before` are the latents before the step, `predicted` the network's
    prediction from them. The scheduler's next step starts from the result.
    """
    times = scheduler.timesteps
    level = Level.of(scheduler, times[step])
    after = Level.of(scheduler, times[step + 1] if step + 1 < len(times) else None)
    clean = level.clean(before, predicted, scheduler.config.prediction_type)
    restored, shares = latents.clone(), torch.zeros_like(latents[:, :1])
    for row, shape in shapes.items():
        if step < shape.until:
            rows = slice(row, row + 1)
            restored[rows], shares[rows] = shape.restore(latents[rows], after, clean[rows]), shape.mask
    if isinstance(scheduler, HoldingUniPC):
        scheduler.set_shares = shares
    return restored


def relit(source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """The source's latents with the local means of others, both taken inside the mask."""
    half = max(1, round(LIGHT_REACH * min(source.shape[-2:]) / 2))

    def mean(latents: Tensor) -> Tensor:
        return avg_pool2d(latents * mask, 2 * half + 1, stride=1, padding=half)

    covered = avg_pool2d(mask, 2 * half + 1, stride=1, padding=half).clamp(min=1e-4)
    return source + (mean(target) - mean(source)) / covered
