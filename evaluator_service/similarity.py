"""Embedding models for similarity: the scorer and the text embedder.

The scorer is a CLIP or SigLIP (a joint space of images and texts), independent of the generator and the oracles. The
text embedder is a language-only model, which can tell single words apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer
from transformers.utils.hub import cached_file

from shared.media.images import Pixels
from shared.profiles.weights import Weights
from shared.service.load_progress import reading


class Scorer:
    """A CLIP or SigLIP with its tokenizer and preprocessing."""

    def __init__(self, weights: Weights, *, device: str) -> None:
        """Load weights in Hub layout (safetensors, no remote code)."""
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        with reading(weights):
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
        return _normalise(self._model.get_image_features(pixel_values=pixel_values).pooler_output)

    @torch.inference_mode()
    def layer_statistics(self, images: Sequence[Pixels], layers: int = 2) -> NDArray[np.float64]:
        """Mean and deviation over the patches of each channel of the first layers, images × (layers · 2 · width)."""
        inputs = self._processor(images=[Image.fromarray(image) for image in images], return_tensors="pt")
        pixel_values = inputs["pixel_values"].to(self._model.device, self._model.dtype)
        states = self._model.vision_model(pixel_values=pixel_values, output_hidden_states=True).hidden_states
        patches = [state.float() for state in states[1 : layers + 1]]
        statistics = torch.cat([part for state in patches for part in (state.mean(1), state.std(1))], 1)
        return np.asarray(statistics.double().cpu().numpy())

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """L2-normalised embeddings, texts × width. Texts are cut to the model's length (77 tokens with OpenAI's CLIP).

        All texts are padded to that length, so that an embedding does not depend on its neighbours' lengths; SigLIP was
        trained this way. CLIP attends only backwards from the end of the text, so padding does not affect it.
        """
        tokens = self._tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self._limit, return_tensors="pt"
        )
        features = self._model.get_text_features(input_ids=tokens.input_ids.to(self._model.device))
        return _normalise(features.pooler_output)


class TextEmbedder:
    """A sentence-embedding model: a transformer's last states, averaged over the tokens of a text (arXiv 1908.10084).

    The layout is that of transformers; sentence-transformers adds a description of the pooling.
    """

    def __init__(self, weights: Weights, *, device: str) -> None:
        """Load weights in Hub layout (safetensors, no remote code). Raises ValueError for another pooling than mean."""
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        if not _pools_by_mean(weights):
            raise ValueError(f"{weights.id} does not pool by the mean; choose a text embedder that does")
        with reading(weights):
            model = AutoModel.from_pretrained(
                weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, **at
            )
            self._model = model.to(device).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(weights.location, **at)
        self._limit = min(int(self._tokenizer.model_max_length), int(model.config.max_position_embeddings))

    def tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text, cut to the model's length."""
        return tuple(self._tokenizer(text, truncation=True, max_length=self._limit)["input_ids"])

    def padded_length(self, tokens: int) -> int:
        """The padded length for a number of tokens: the next power of two, so that few lengths occur."""
        return min(max(8, 1 << (tokens - 1).bit_length()), self._limit)

    @torch.inference_mode()
    def embed(self, rows: Sequence[tuple[int, ...]], length: int) -> NDArray[np.float64]:
        """L2-normalised embeddings, texts × width, of tokens that are padded to `length`."""
        padding = self._tokenizer.pad_token_id or 0
        ids = torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows], device=self._model.device)
        attended = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows], device=self._model.device)
        states = self._model(input_ids=ids, attention_mask=attended).last_hidden_state.float()
        return _normalise((states * attended[..., None]).sum(1) / attended.sum(1, keepdim=True))


def _pools_by_mean(weights: Weights) -> bool:
    """Whether sentence-transformers' description of the pooling says mean; True if there is none."""
    path = cached_file(
        weights.location,
        "1_Pooling/config.json",
        subfolder=weights.subfolder,
        revision=weights.hub_revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return True
    pooling = json.loads(Path(path).read_text(encoding="utf-8"))
    return bool(pooling.get("pooling_mode") == "mean" or pooling.get("pooling_mode_mean_tokens"))


def _normalise(embeddings: Tensor) -> NDArray[np.float64]:
    unit = torch.nn.functional.normalize(embeddings.float(), dim=-1)
    return np.asarray(unit.double().cpu().numpy())
