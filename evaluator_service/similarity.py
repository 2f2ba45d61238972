"""The scorer: a CLIP's or SigLIP's joint space of images and texts; neither the generator's weights nor an oracle's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from shared.images import Pixels
from shared.weights import Weights


class Scorer:
    """A CLIP or SigLIP with its tokenizer and preprocessing."""

    def __init__(self, weights: Weights, *, device: str) -> None:
        """Load weights in Hub layout (safetensors, no remote code)."""
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        model = AutoModel.from_pretrained(
            weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, **at
        )
        self._model = model.to(device).eval()
        self._processor = AutoImageProcessor.from_pretrained(weights.location, backend="pil", **at)
        self._tokenizer = AutoTokenizer.from_pretrained(weights.location, **at)
        self._limit = min(
            int(self._tokenizer.model_max_length), int(self._model.config.text_config.max_position_embeddings)
        )
        self.logit_scale = float(self._model.logit_scale.detach().float().exp())

    @torch.inference_mode()
    def embed_images(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """L2-normalised embeddings, images × width, of RGB images of any sizes (height × width × 3)."""
        inputs = self._processor(images=[Image.fromarray(image) for image in images], return_tensors="pt")
        pixel_values = inputs["pixel_values"].to(self._model.device, self._model.dtype)
        return _normalised(self._model.get_image_features(pixel_values=pixel_values).pooler_output)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """L2-normalised embeddings, texts × width. The first tokens of each are read (77 with OpenAI's weights).

        All texts are padded to that length: so an embedding does not depend on its neighbours' lengths, and SigLIP was
        trained so. CLIP looks only backwards from the end of the text, so that padding changes nothing.
        """
        tokens = self._tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self._limit, return_tensors="pt"
        )
        features = self._model.get_text_features(input_ids=tokens.input_ids.to(self._model.device))
        return _normalised(features.pooler_output)


def _normalised(embeddings: Tensor) -> NDArray[np.float64]:
    unit = torch.nn.functional.normalize(embeddings.float(), dim=-1)
    return np.asarray(unit.double().cpu().numpy())
