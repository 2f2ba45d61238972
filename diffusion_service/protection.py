"""Protected classes: their regions in the source, how their shape is held while an image is made, what became of them.

`blended` (after blended latent diffusion, arXiv 2206.02779): after each of the first steps, the latents inside the mask
are those of the source, noised to that step's level with the image's own noise. `relit` does the same with a source
whose light is the new image's: from place to place, its mean latent inside the mask is that of what the network sees
there by now. The mask is soft: a latent counts as far as the mask covers it. A strength below 1 holds nothing in the
last steps, so that light and seams settle. Pixels are never pasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from diffusion_service.segmentation import LabelMap
from shared.images import Pixels
from shared.problems import InvalidInput
from shared.regions import Mask, connected, overlap
from shared.schemas.diffusion import RegionOutcome

OUTLINE = 0.012  # half the width of the band along an outline in which a seam would show, in shares of the short side
SPREAD = 0.008  # by how much the mask reaches beyond the region where it is held, likewise
BESIDE = 0.05  # how far around a region its surroundings reach, likewise
LIGHT_REACH = 0.25  # relit: side of the square over which latents are averaged, likewise


@dataclass(frozen=True, slots=True)
class Region:
    """A connected region (height × width) of a protected class in the source."""

    label: str
    mask: Mask


def regions(label_map: LabelMap, labels: Sequence[str], protected: Sequence[str]) -> list[Region]:
    """The regions of the protected classes, specks left out. Raises InvalidInput for a class that is no label."""
    if unknown := sorted(set(protected) - set(labels)):
        raise InvalidInput(
            f"the segmenter knows no class {', '.join(unknown)} to protect; it knows {', '.join(dict.fromkeys(labels))}"
        )
    found = []
    for label in dict.fromkeys(protected):
        of_label = np.isin(label_map, [place for place, name in enumerate(labels) if name == label])
        found += [Region(label, mask) for mask in connected(of_label)]
    return found


def outcomes(
    found: Sequence[Region], label_map: LabelMap, labels: Sequence[str], image: Pixels
) -> tuple[RegionOutcome, ...]:
    """What became of the source's regions in an image (height × width × 3) of the given label map."""
    whole = union(found, label_map.shape) > 0
    return tuple(
        RegionOutcome(
            iou=_overlap(region, [one for one in found if one is not region], label_map, labels),
            outline=outline_contrast(image, region.mask),
            inside=mean_colour(image, region.mask),
            around=mean_colour(image, _beside(region.mask) & ~whole),
        )
        for region in found
    )


def mean_colour(image: Pixels, mask: Mask) -> tuple[float, float, float]:
    """Red, green and blue within a mask; all 0 where it is empty."""
    red, green, blue = image[mask].mean(axis=0, dtype=np.float64) if mask.any() else (0.0, 0.0, 0.0)
    return float(red), float(green), float(blue)


def _beside(mask: Mask) -> Mask:
    reach = max(2, round(BESIDE * min(mask.shape)))
    wide = cv2.dilate(mask.astype(np.uint8), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    return np.asarray(wide > 0) & ~mask


def _overlap(region: Region, others: Sequence[Region], label_map: LabelMap, labels: Sequence[str]) -> float:
    """IoU of a region with its class's connected regions that touch it, other regions of the source left out."""
    there = np.isin(label_map, [place for place, name in enumerate(labels) if name == region.label])
    return overlap(region.mask, [other.mask for other in others], there)


def outline_contrast(image: Pixels, mask: Mask) -> float:
    """Mean length of the gradient, in grey levels per pixel, in a band along the outline of a mask.

    The image's border is no outline; a mask without any has 0.
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


def soft_mask(found: Sequence[Region], shape: tuple[int, int], factor: int) -> Tensor:
    """How far the regions cover each latent: 1 × 1 × latent height × latent width, 0 … 1; `shape` is in pixels."""
    whole = union(found, shape)
    reach = max(1, round(SPREAD * min(shape)))
    wide = cv2.dilate(whole, np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
    coverage = torch.from_numpy(wide).float()[None, None] / 255
    return interpolate(coverage, (shape[0] // factor, shape[1] // factor), mode="area")


def union(found: Sequence[Region], shape: tuple[int, ...]) -> Pixels:
    """All regions as one mask: height × width, 255 inside."""
    whole = np.zeros(shape, np.bool_)
    for region in found:
        whole |= region.mask
    return np.where(whole, 255, 0).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Level:
    """What latents hold at some time of a schedule: `signal` · clean latents + `noise` · noise of unit variance."""

    signal: float
    noise: float

    @classmethod
    def of(cls, scheduler: Any, time: Tensor | None) -> Level:
        """The level of a scheduler of diffusers, whatever its convention; None stands for the end, without noise."""
        if time is None:
            return cls(1.0, 0.0)
        one, none = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
        times = time.reshape(1).cpu()
        signal, noise = scheduler.add_noise(one, none, times), scheduler.add_noise(none, one, times)
        return cls(float(signal), float(noise))

    def clean(self, latents: Tensor, predicted: Tensor, kind: str) -> Tensor:
        """The clean latents that a network means by its prediction of a `kind` (epsilon, v_prediction, sample)."""
        size = float(np.hypot(self.signal, self.noise))
        signal, noise, latents = self.signal / size, self.noise / size, latents / size
        if kind == "sample":
            return predicted
        if kind == "v_prediction":
            return signal * latents - noise * predicted
        return (latents - noise * predicted) / signal


@dataclass(frozen=True, slots=True)
class Shape:
    """What is held of one source in one image: tensors of 1 × channels × latent height × latent width.

    `mask` has one channel; `noise` is that which the image starts from; `until` counts the steps after which nothing is
    held any more; `relit` says which of the two ways.
    """

    source: Tensor
    mask: Tensor
    noise: Tensor
    until: int
    relit: bool

    def held(self, latents: Tensor, level: Level, seen: Tensor) -> Tensor:
        """The latents after a step, at `level`, with the source's shape; `seen` is what the step took for clean."""
        clean = relit(self.source, seen, self.mask) if self.relit else self.source
        noised = level.signal * clean + level.noise * self.noise
        return self.mask * noised + (1 - self.mask) * latents


def relit(source: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
    """The source's latents with the local means of others, both taken inside the mask."""
    half = max(1, round(LIGHT_REACH * min(source.shape[-2:]) / 2))

    def mean(of: Tensor) -> Tensor:
        return avg_pool2d(of * mask, 2 * half + 1, stride=1, padding=half)

    covered = avg_pool2d(mask, 2 * half + 1, stride=1, padding=half).clamp(min=1e-4)
    return source + (mean(seen) - mean(source)) / covered
