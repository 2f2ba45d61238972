"""Depth estimation from one image, for the ControlNet of kind `depth`: near is bright."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForDepthEstimation

from shared.images import Pixels
from shared.load_progress import reading
from shared.problems import NotFinite
from shared.weights import Weights


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
