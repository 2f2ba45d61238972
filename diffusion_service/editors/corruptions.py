"""Classical corruptions at five severities (Hendrycks & Dietterich, ImageNet-C, arXiv 1903.12261, section 4).

Eleven of ImageNet-C's fifteen, by kornia and, for JPEG, Pillow. The table's numbers are those of the authors' code
(hendrycks/robustness, `imagenet_c/corruptions.py`), which are for images of 224 × 224; lengths in pixels scale with the
image's short side. Left out are glass blur, snow and frost (no maintained library has them, and frost needs
photographs) and the elastic transform (its severities are not in order). Everything runs on the CPU, so a result does
not depend on the device; all randomness comes from the seed, so with one seed severities differ in strength only.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial

import kornia
import numpy as np
import torch
from kornia.contrib import diamond_square
from PIL import Image
from torch import Tensor

from shared.media.images import Pixels, to_array
from shared.problems import InvalidInput
from shared.schemas.diffusion import Corruption, CorruptionKind

REFERENCE_SIDE = 224  # pixels; the table's lengths are for this side
LEAST_SIDE = 8  # pixels: smaller images cannot be blurred

Corrupt = Callable[..., Tensor]  # an image (3, h, w) in 0 … 1, a generator, and strengths → the corrupted image


def corrupt(source: Pixels, corruption: Corruption) -> Pixels:
    """Apply one corruption to the source (height × width × 3); severity 0 returns the source unchanged.

    Raises InvalidInput for a source with a side of under 8 pixels.
    """
    if min(source.shape[:2]) < LEAST_SIDE:
        raise InvalidInput(
            f"an image with a side of {min(source.shape[:2])} pixels is too small; {LEAST_SIDE} are needed"
        )
    if corruption.severity == 0:
        return source
    apply, *strengths = CORRUPTIONS[corruption.kind]
    image = torch.tensor(source).permute(2, 0, 1).float() / 255
    chance = torch.Generator().manual_seed(corruption.seed)
    with torch.inference_mode():
        corrupted_image = apply(image, chance, *(five[corruption.severity - 1] for five in strengths))
        return np.ascontiguousarray((corrupted_image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())


def gaussian_noise(image: Tensor, chance: torch.Generator, deviation: float) -> Tensor:
    """Noise of an electronic sensor in little light."""
    return image + deviation * torch.randn(image.shape, generator=chance, dtype=torch.float32)


def shot_noise(image: Tensor, chance: torch.Generator, photons: float) -> Tensor:
    """Noise of counting few photons; `photons` reach a white pixel."""
    return torch.poisson(image * photons, generator=chance) / photons


def impulse_noise(image: Tensor, chance: torch.Generator, share: float) -> Tensor:
    """A share of the values of all pixels is 0 or 1, as after bit errors."""
    hit = torch.rand(image.shape, generator=chance, dtype=torch.float32)
    white = torch.rand(image.shape, generator=chance, dtype=torch.float32) < 0.5
    return torch.where(hit < share, white.float(), image)


def defocus_blur(image: Tensor, chance: torch.Generator, radius: float) -> Tensor:
    """A lens out of focus: every point becomes a disc."""
    radius = _pixels(image, radius)
    reach = min(int(np.ceil(radius)), min(image.shape[1:]) - 1)
    places = torch.arange(-reach, reach + 1).float()
    distance = (places[:, None] ** 2 + places**2).sqrt()
    disc = (radius + 0.5 - distance).clamp(0, 1)  # a pixel on the edge of the disc counts in part
    return torch.as_tensor(kornia.filters.filter2d(image[None], disc[None], normalized=True)[0])


def motion_blur(image: Tensor, chance: torch.Generator, length: float) -> Tensor:
    """A camera that moved: every point becomes a streak, up to 45° from level."""
    widest = min(image.shape[1:]) * 2 - 1
    size = min(max(3, 2 * round((_pixels(image, length) - 1) / 2) + 1), widest)
    angle = float(torch.rand((), generator=chance, dtype=torch.float32)) * 90 - 45
    return filter_by_shifts(image, kornia.filters.get_motion_kernel2d(size, angle, 0.0, "bilinear")[0])


def filter_by_shifts(image: Tensor, kernel: Tensor) -> Tensor:
    """The image (3, h, w) filtered by an odd square kernel, with reflected borders, as `kornia.filters.filter2d`.

    Its cost grows with the weights other than 0, which are few in a line; a convolution's grows with the kernel's area.
    """
    height, width = image.shape[1:]
    padded = torch.nn.functional.pad(image[None], [kernel.shape[0] // 2] * 4, mode="reflect")[0]
    total = torch.zeros_like(image)
    for row, column in kernel.nonzero().tolist():
        total.add_(padded[:, row : row + height, column : column + width], alpha=float(kernel[row, column]))
    return total


def zoom_blur(image: Tensor, chance: torch.Generator, most: float) -> Tensor:
    """A camera that moved forward: the mean of the image at magnifications from 1 to `most`."""
    factors = torch.arange(1, most, 0.01, dtype=torch.float32)
    total = torch.zeros_like(image)
    for factor in factors:  # one at a time: thirty views of a large image would not fit
        total += kornia.geometry.transform.scale(image, factor[None], padding_mode="border")
    return total / len(factors)


def fog(image: Tensor, chance: torch.Generator, thickness: float, decay: float) -> Tensor:
    """Bright haze of uneven (fractal) thickness; the image keeps its range of values."""
    height, width = image.shape[1:]
    haze: Tensor = diamond_square(
        (1, 1, height, width),
        roughness=1 / decay,
        random_fn=partial(torch.rand, generator=chance),
        normalize_range=(0, 1),
    )[0]
    brightest = image.max()
    return (image + thickness * haze) * brightest / (brightest + thickness)


def brightness(image: Tensor, chance: torch.Generator, added: float) -> Tensor:
    """More light: add to the value of every pixel in HSV."""
    hue, saturation, value = kornia.color.rgb_to_hsv(image)
    return torch.as_tensor(kornia.color.hsv_to_rgb(torch.stack([hue, saturation, (value + added).clamp(0, 1)])))


def contrast(image: Tensor, chance: torch.Generator, share: float) -> Tensor:
    """Less contrast: every pixel keeps a share of its distance from the image's mean."""
    return torch.as_tensor(kornia.enhance.adjust_contrast_with_mean_subtraction(image, share))


def pixelate(image: Tensor, chance: torch.Generator, share: float) -> Tensor:
    """Shrink the image to a share of its rows and columns and enlarge it again."""
    height, width = image.shape[1:]
    fewer = (max(1, int(height * share)), max(1, int(width * share)))
    resize = kornia.geometry.transform.resize
    return torch.as_tensor(resize(resize(image[None], fewer, "area"), (height, width), "nearest-exact")[0])


def jpeg(image: Tensor, chance: torch.Generator, quality: float) -> Tensor:
    """Lossy compression by Pillow's own JPEG."""
    buffer = io.BytesIO()
    Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=int(quality))
    return torch.from_numpy(to_array(Image.open(buffer))).permute(2, 0, 1).float() / 255


def _pixels(image: Tensor, length: float) -> float:
    """A length of the table, in this image's pixels."""
    return length * min(image.shape[1:]) / REFERENCE_SIDE


# The authors use ImageMagick's streaks, half a Gaussian; these are uniform with the same standard deviation.
CORRUPTIONS: dict[CorruptionKind, tuple[Corrupt, *tuple[Sequence[float], ...]]] = {
    "gaussian_noise": (gaussian_noise, (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": (shot_noise, (60, 25, 12, 5, 3)),
    "impulse_noise": (impulse_noise, (0.03, 0.06, 0.09, 0.17, 0.27)),
    "defocus_blur": (defocus_blur, (3, 4, 6, 8, 10)),
    "motion_blur": (motion_blur, (6.3, 10.4, 16, 24, 30)),
    "zoom_blur": (zoom_blur, (1.11, 1.16, 1.21, 1.26, 1.31)),
    "fog": (fog, (1.5, 2.0, 2.5, 2.5, 3.0), (2.0, 2.0, 1.7, 1.5, 1.4)),
    "brightness": (brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (contrast, (0.4, 0.3, 0.2, 0.1, 0.05)),
    "pixelate": (pixelate, (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg": (jpeg, (25, 18, 15, 10, 7)),
}
