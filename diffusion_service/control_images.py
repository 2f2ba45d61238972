"""Control images, label maps and masks of source images, computed once per source, kind and region."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from diffusion_service import conditioning
from diffusion_service.depth import DepthEstimator
from diffusion_service.geometry import Fit
from diffusion_service.hed import HedDetector
from diffusion_service.segmentation import LabelMap, Segmenter
from shared.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.diffusion import ControlKind, ControlRegion


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
        self.image = lru_cache(maxsize=256)(self._compute_image)

    @property
    def regions(self) -> tuple[ControlRegion, ...]:
        """The control regions that are available."""
        return ("full",) if self.segmenter is None else ("full", "structure", "object")

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
            return self._compute(source.image, source, kind)
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
        return conditioning.object_region(self._compute(source.image, source, kind), keep)

    def _structure(self, source: Source, kind: ControlKind, keep: Pixels) -> Pixels:
        """Edges without rain and texture; label maps and depth have neither, so they are used unchanged."""
        if kind == "canny":
            return conditioning.structure(source.image, keep)
        if kind in ("soft_edges", "hed"):
            return self._compute(conditioning.smooth_strokes(source.image), source, kind)
        return self._compute(source.image, source, kind)

    def _compute(self, image: Pixels, source: Source, kind: ControlKind) -> Pixels:
        if kind == "canny":
            return conditioning.canny(image)
        if kind == "soft_edges":
            return conditioning.soft_edges(image)
        if kind == "depth" and self._depth is not None:
            return self._depth.depth(image)
        if kind == "hed" and self._hed is not None:
            return self._hed.edges(image)
        if kind == "segmentation" and self._palette is not None:
            return np.asarray(self._palette[self.labels(source)], np.uint8)
        raise InvalidInput(f"this profile cannot compute control images of kind {kind!r}; use another kind")
