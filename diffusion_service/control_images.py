"""Control images, label maps and masks of source images, computed once per source, kind and region.

Compute control images: edges of the source, which make the new image keep the source's structure.

Images are uint8 arrays of height × width × 3 (RGB). Masks and edge images are uint8 arrays of height × width with
values 0 and 255; soft edges also have values between. Results have the size of the given image and need no models.

Depth estimation from one image, for the ControlNet of kind `depth`: near is bright.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import cv2
import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForDepthEstimation

from diffusion_service.geometry import Fit
from diffusion_service.hed import HedDetector
from diffusion_service.segmentation import LabelMap, Segmenter
from shared.media.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.profiles.weights import Weights
from shared.schemas.diffusion import ControlKind, ControlRegion, EditControl
from shared.service.load_progress import reading


class DepthEstimator:
    """A model of relative inverse depth (DPT, Depth Anything) in transformers' layout."""

    def __init__(self, weights: Weights, *, device: str) -> None:
        """Load weights in Hub layout (safetensors)."""
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        with reading(weights):
            model = AutoModelForDepthEstimation.from_pretrained(
                weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, **at
            )
            self._model = model.to(device).eval()
        self._processor = AutoImageProcessor.from_pretrained(weights.location, backend="pil", **at)

    @torch.inference_mode()
    def depth(self, image: Pixels) -> Pixels:
        """Depth of an RGB image, height × width: 0 for the farthest pixels, 255 for the nearest. Raises NotFinite."""
        inputs = self._processor(images=Image.fromarray(image), return_tensors="pt")
        pixel_values = inputs["pixel_values"].to(self._model.device, self._model.dtype)
        near = self._model(pixel_values=pixel_values).predicted_depth.float()[:, None]
        if not near.isfinite().all():
            raise NotFinite("the estimated depth has NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16")
        near = torch.nn.functional.interpolate(near, size=image.shape[:2], mode="bicubic")[0, 0]
        least, most = near.min(), near.max()
        scaled = (near - least) / (most - least).clamp(min=torch.finfo(near.dtype).tiny)
        return np.asarray(scaled.mul(255).round().clamp(0, 255).byte().cpu().numpy(), np.uint8)


# By default cv2 starts a thread per core, though an image takes less than a millisecond.
cv2.setNumThreads(1)

LOOSE_EXTENT = 0.09  # structure: connected edges shorter than this share of the image's short side are loose
SPECK_EXTENT = 0.05  # structure: the same for edges of what must stay
SMOOTHING = 5  # structure: window of the median filter, in pixels of a 128-pixel short side
SOFT_SCALES = (0.002, 0.004, 0.008)  # soft edges: widths of the Gaussians, in shares of the short side
SOFT_BRIGHTEST = 99.0  # soft edges: percentile of the edge strength that becomes white
OBJECT_MARGIN = 0.025  # object: edges within this share of the short side outside the mask belong to the object


@dataclass(frozen=True, slots=True)
class Source:
    """A source image at the model's size (height × width × 3) with its original size; compared by digest."""

    image: Pixels = field(compare=False, repr=False)
    geometry: Fit
    digest: str


class ControlImages:
    """Computes and caches control images, label maps and masks of sources; several threads may use it."""

    def __init__(
        self,
        segmenter: Segmenter | None,
        palette: Pixels | None = None,
        depth: DepthEstimator | None = None,
        hed: HedDetector | None = None,
    ) -> None:
        """`palette` (labels × 3) colours labels for kind `segmentation`; `depth` and `hed` serve the kinds so named."""
        self.segmenter = segmenter
        self._palette = palette
        self._depth = depth
        self._hed = hed
        self.labels = lru_cache(maxsize=64)(self._compute_labels)
        self.filtered = lru_cache(maxsize=64)(_compute_filtered)
        self._preparing = threading.Lock()
        self.image = lru_cache(maxsize=256)(self._compute_image)

    @property
    def regions(self) -> tuple[ControlRegion, ...]:
        """The control regions that are available."""
        return ("full",) if self.segmenter is None else ("full", "structure", "object")

    def prepare(self, source: Source, kinds: Iterable[ControlKind], regions: Iterable[EditControl]) -> None:
        """Compute what control images need before any network, so that `image` finds it. Any thread but the model's."""
        with self._preparing:  # the requests of a source come together
            for kind in kinds:
                for region in regions:
                    for image_filter in _FILTERS.get((kind, "full" if region == "object" else region), ()):
                        self.filtered(source, image_filter)

    def keep(self, source: Source) -> Pixels | None:
        """The mask of a source's pixels that must not change; None without a segmenter.

        Region `full` needs it too: the check `structure` compares the edges inside this mask. The segmenter runs once
        per source, for any number of renderings.
        """
        return None if self.segmenter is None else self.segmenter.mask_of(self.labels(source))

    def _compute_labels(self, source: Source) -> LabelMap:
        """The source's label map. Raises InvalidInput without a segmenter."""
        if self.segmenter is None:
            raise InvalidInput("this request needs a segmenter and the profile has none; add [diffusion.segmenter]")
        return self.segmenter.label_map(source.image)

    def _compute_image(self, source: Source, kind: ControlKind, region: ControlRegion) -> Pixels:
        """Height × width, or × 3 with colours. Raises InvalidInput if kind or region is not available."""
        if region == "full":
            return self._full(source, kind)
        keep = self.keep(source)
        if keep is None:
            raise InvalidInput(
                f"control region {region!r} needs a segmenter, and this profile has none; use region 'full', or add "
                "[diffusion.segmenter]"
            )
        if region == "structure":
            return self._structure(source, kind, keep)
        if not keep.any():
            raise InvalidInput("the segmenter detects nothing to keep in this image; use region 'full' or 'structure'")
        return object_region(self._full(source, kind), keep)

    def _structure(self, source: Source, kind: ControlKind, keep: Pixels) -> Pixels:
        """Edges without rain and texture; label maps and depth have neither, so they are used unchanged."""
        if kind == "canny":
            return np.maximum(self.filtered(source, outlines), object_region(self.filtered(source, details), keep))
        if kind == "soft_edges":
            return self.filtered(source, smooth_soft_edges)
        if kind == "hed" and self._hed is not None:
            return self._hed.edges(self.filtered(source, smooth_strokes))
        return self._full(source, kind)

    def _full(self, source: Source, kind: ControlKind) -> Pixels:
        if kind == "canny":
            return self.filtered(source, canny)
        if kind == "soft_edges":
            return self.filtered(source, soft_edges)
        if kind == "depth" and self._depth is not None:
            return self._depth.depth(source.image)
        if kind == "hed" and self._hed is not None:
            return self._hed.edges(source.image)
        if kind == "segmentation" and self._palette is not None:
            return np.asarray(self._palette[self.labels(source)], np.uint8)
        raise InvalidInput(f"this profile cannot compute control images of kind {kind!r}; use another kind")


Filter = Callable[[Pixels], Pixels]


def _compute_filtered(source: Source, image_filter: Filter) -> Pixels:
    return image_filter(source.image)


def canny(image: Pixels, low: int = 60, high: int = 120) -> Pixels:
    """Canny edges of an RGB image after a 3 × 3 Gaussian of sigma 0.8; the ControlNet is trained on exactly these."""
    gray = cv2.cvtColor(cv2.GaussianBlur(image, (3, 3), 0.8), cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.Canny(gray, low, high), dtype=np.uint8)


def structure(image: Pixels, keep: Pixels | None = None) -> Pixels:
    """The edges of the scene's structure, without the small loose ones of rain, snow, stars and texture.

    The image is smoothed by a median filter, which removes strokes thinner than half its window and preserves outlines;
    then connected edges of small extent are dropped. With a `keep` mask, the edges inside it are added from the
    unsmoothed image, so that wheels and windows are kept; only specks (flakes, dots) are left out.
    """
    return outlines(image) if keep is None else np.maximum(outlines(image), object_region(details(image), keep))


def outlines(image: Pixels) -> Pixels:
    """The long edges of the image without thin strokes."""
    return _drop_loose(canny(smooth_strokes(image)), LOOSE_EXTENT * min(image.shape[:2]))


def details(image: Pixels) -> Pixels:
    """All edges but specks."""
    return _drop_loose(canny(image), SPECK_EXTENT * min(image.shape[:2]))


def object_region(control: Pixels, keep: Pixels) -> Pixels:
    """The part of a control image (one channel or three) inside the `keep` mask or within a few pixels of it."""
    margin = max(1, round(OBJECT_MARGIN * min(keep.shape)))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * margin + 1, 2 * margin + 1))
    near = cv2.dilate(keep, kernel) > 127
    return np.asarray(np.where(near if control.ndim == 2 else near[..., None], control, 0), np.uint8)


def soft_edges(image: Pixels) -> Pixels:
    """Edge strength, 0 … 255: the gradient's length, the largest over the colours, averaged over three scales.

    It needs no weights, unlike HED (arXiv 1504.06375, kind `hed`). Like HED's, its lines are broad and graded; unlike
    HED, it cannot tell objects from texture, so texture has edges too.
    """
    short = min(image.shape[:2])
    strength = np.zeros(image.shape[:2], np.float32)
    for scale in SOFT_SCALES:
        sigma = max(0.6, scale * short)
        smooth = cv2.GaussianBlur(image, (0, 0), sigma).astype(np.float32)
        across, along = (cv2.Sobel(smooth, cv2.CV_32F, *axis) for axis in ((1, 0), (0, 1)))
        strength += sigma * np.hypot(across, along).max(axis=2)
    edge_values = strength[strength > 0]
    brightest = float(np.percentile(edge_values, SOFT_BRIGHTEST)) if edge_values.size else 1.0
    return np.asarray(np.clip(strength * (255 / brightest), 0, 255), np.uint8)


def smooth_strokes(image: Pixels) -> Pixels:
    """The image without strokes thinner than half the window of a median filter."""
    window = max(3, round(SMOOTHING * min(image.shape[:2]) / 128) | 1)
    return np.asarray(cv2.medianBlur(image, window), dtype=np.uint8)


def smooth_soft_edges(image: Pixels) -> Pixels:
    """The soft edges of the image without thin strokes."""
    return soft_edges(smooth_strokes(image))


# What `ControlImages` filters for a kind and a region.
_FILTERS: dict[tuple[ControlKind, EditControl], tuple[Filter, ...]] = {
    ("canny", "full"): (canny,),
    ("canny", "structure"): (outlines, details),
    ("soft_edges", "full"): (soft_edges,),
    ("soft_edges", "structure"): (smooth_soft_edges,),
    ("hed", "structure"): (smooth_strokes,),
}


def _drop_loose(edges: Pixels, extent: float) -> Pixels:
    """The connected edges whose bounding box is at least `extent` pixels long in one direction."""
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(edges, connectivity=8)
    longest = boxes[:, [cv2.CC_STAT_WIDTH, cv2.CC_STAT_HEIGHT]].max(axis=1)
    is_long = longest >= extent
    is_long[0] = False  # component 0 is everything that is not an edge
    return np.where(is_long[labels], 255, 0).astype(np.uint8) if count > 1 else edges
