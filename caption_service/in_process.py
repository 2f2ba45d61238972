"""Captioning with weights in this process: batched generation, run by one thread.

Sample with one random generator per row, so that a caption does not depend on its batch, and detect NaN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from shared.media.images import Pixels, decode
from shared.problems import InvalidInput, NotFinite, OutOfMemory
from shared.schemas.caption import CaptionRequest
from shared.schemas.service import WeightsInfo
from shared.service.control_words import refuse_control_words
from shared.service.model_service import MakeBatcher


class NanWatch:
    """A logits processor that records which rows have NaN and replaces it, so that the other rows continue."""

    def __init__(self) -> None:
        self._broken = torch.zeros(0, dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (rows, vocabulary) without NaN."""
        nan = scores.isnan()
        rows = nan.any(dim=-1)
        self._broken = rows if len(self._broken) != len(rows) else self._broken | rows
        return scores.masked_fill(nan, torch.finfo(scores.dtype).min)

    def are_broken(self, images: int) -> list[bool]:
        """Per image, whether any of its rows (one per beam) had NaN."""
        if not len(self._broken):
            return [False] * images
        return [bool(value) for value in self._broken.reshape(images, -1).any(dim=1).tolist()]


class Sampling(NamedTuple):
    """How one row is sampled: `temperature` 0 is greedy, `top_p` 1 keeps all tokens."""

    temperature: float
    top_p: float
    seed: int


class RowNoise:
    """A logits processor that makes greedy decoding sample: argmax(logits + T·Gumbel noise) ~ softmax(logits / T).

    Each row has its own generator on the CPU, so its text depends on its seed only, not on its neighbours or the
    device. Rows with temperature 0 stay greedy; with `top_p` below 1 a row samples from its nucleus.
    """

    def __init__(self, rows: Sequence[Sampling]) -> None:
        self._rows = [(row, torch.Generator().manual_seed(row.seed)) for row in rows]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores of shape (rows, vocabulary) with each row's noise added."""
        noisy = scores.float()
        for row, (sampling, generator) in enumerate(self._rows):
            if sampling.temperature > 0:
                if sampling.top_p < 1:
                    noisy[row] = in_nucleus(noisy[row], sampling.temperature, sampling.top_p)
                exponential = torch.empty(scores.shape[-1], dtype=torch.float32).exponential_(generator=generator)
                noisy[row] -= sampling.temperature * exponential.log().to(scores.device)
        return noisy


def in_nucleus(scores: Tensor, temperature: float, top_p: float) -> Tensor:
    """Scores of shape (vocabulary,), −∞ outside the fewest tokens whose softmax(scores / T) sum to at least `top_p`.

    Nucleus sampling of Holtzman et al., arXiv 1904.09751, section 3.1.
    """
    probabilities, tokens = (scores / temperature).softmax(dim=-1).sort(descending=True, stable=True)
    outside = probabilities.cumsum(dim=-1) - probabilities >= top_p  # the tokens before it are enough
    return scores.index_fill(0, tokens[outside], -torch.inf)


GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=0)
_NOT_FINITE = "the captioner's output has NaN; set CONTRAFACT_DTYPE to float32 or bfloat16"
Encode = Callable[[Sequence[Pixels], str], dict[str, Tensor]]


class BatchKey(NamedTuple):
    """Parameters that all images of a batch share."""

    prompt: str
    min_tokens: int
    max_tokens: int
    beams: int


@dataclass(frozen=True, slots=True)
class CaptionItem:
    """One caption of an image."""

    pixels: Pixels
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with its pre- and postprocessing.

    `encode` turns images and a prompt into `generate`'s inputs, of equal length for all images unless
    `length_follows_size`. Prompts that hold one of the `control_words` are refused. With `repeats_prompt`, `generate`
    returns the prompt's tokens before the new ones.
    """

    model: PreTrainedModel
    encode: Encode
    text_of: Callable[[Tensor], list[str]]
    weights: WeightsInfo
    device: str
    repeats_prompt: bool
    length_follows_size: bool
    control_words: tuple[str, ...]


class InProcessCaptioner:
    """Captions images with `loaded`; its batcher's thread is the only one that runs the model."""

    def __init__(self, loaded: Loaded, make_batcher: MakeBatcher, max_batch: int, deterministic: bool) -> None:
        self._loaded = loaded
        # Rows of different lengths would be padded, which changes their last bits; so such images run one at a time.
        self._one_by_one = deterministic and loaded.length_follows_size
        self.device = loaded.device
        self.weights = [loaded.weights]
        self._run(BatchKey("", 0, 2, 1), [CaptionItem(np.zeros((64, 64, 3), np.uint8), GREEDY)])  # warm-up
        self._batcher = make_batcher(self._run, 1 if self._one_by_one else max_batch, kind=lambda key: key[1:])

    async def caption(self, request: CaptionRequest, deadline: float) -> list[str]:
        """Return the captions of the images. Raises InvalidInput."""
        if request.min_tokens > request.max_tokens:
            raise InvalidInput("min_tokens is above max_tokens; lower it")
        refuse_control_words(self._loaded.control_words, [request.prompt])
        images = await asyncio.to_thread(lambda: [decode(image.png) for image in request.images])
        samplings = [Sampling(request.temperature, request.top_p, seed) for seed in request.seeds]
        items = [CaptionItem(pixels, sampling) for pixels in images for sampling in samplings]
        key = BatchKey(request.prompt, request.min_tokens, request.max_tokens, request.beams)
        return await self._batcher.submit_all(items, key=key, deadline=deadline)

    def _run(self, key: BatchKey, items: Sequence[CaptionItem]) -> list[str | NotFinite]:
        try:
            if self._one_by_one:
                return [self._generate(key, [item])[0] for item in items]
            return self._generate(key, items)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(f"the device has too little memory for {len(items)} captions at once") from error

    @torch.inference_mode()
    def _generate(self, key: BatchKey, items: Sequence[CaptionItem]) -> list[str | NotFinite]:
        inputs = {
            name: self._place(tensor)
            for name, tensor in self._loaded.encode([item.pixels for item in items], key.prompt).items()
        }
        watch = NanWatch()
        processors = LogitsProcessorList([watch])
        options: dict[str, Any] = {
            "logits_processor": processors,
            "do_sample": False,
            "num_beams": key.beams,
            "max_new_tokens": key.max_tokens,
            "min_new_tokens": key.min_tokens,
        }
        if key.beams == 1:
            processors.append(RowNoise([item.sampling for item in items]))
        tokens = self._loaded.model.generate(**inputs, **options)
        start = inputs["input_ids"].shape[1] if self._loaded.repeats_prompt else 0
        texts = [text.strip() for text in self._loaded.text_of(tokens[:, start:])]
        return [
            NotFinite(_NOT_FINITE) if broken else text
            for text, broken in zip(texts, watch.are_broken(len(items)), strict=True)
        ]

    def _place(self, tensor: Tensor) -> Tensor:
        dtype = self._loaded.model.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._loaded.device, dtype)
