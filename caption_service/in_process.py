"""Captioning with weights in this process: batched generation, run by one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from caption_service.sampling import NanWatch, RowNoise, Sampling
from shared.control_words import refuse_control_words
from shared.images import Pixels, decode
from shared.problems import InvalidInput, NotFinite, OutOfMemory
from shared.schemas.caption import CaptionRequest
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher

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
