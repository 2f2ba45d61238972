"""Any image-text-to-text chat model in process (Qwen-VL, LLaVA, ...): the prompt is an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from caption_service.in_process import InProcessCaptioner, Loaded
from shared.media.images import Pixels
from shared.profiles.profile import Caption
from shared.profiles.weights import Weights
from shared.service.control_words import control_words
from shared.service.devices import Loading
from shared.service.load_progress import reading


def load_image_text_to_text(loading: Loading[Caption]) -> InProcessCaptioner:
    """Load the profile's weights, safetensors only. An empty prompt becomes the profile's `instruction`."""
    profile = loading.weights
    weights = profile.weights
    assert weights is not None
    model = _load_model(weights, loading.device)
    processor = _load_processor(weights)

    def encode(pixels: Sequence[Pixels], prompt: str) -> dict[str, Tensor]:
        content = [{"type": "image"}, {"type": "text", "text": prompt or profile.instruction}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        images = [[Image.fromarray(array)] for array in pixels]
        encoded = processor(text=[text] * len(images), images=images, padding=True, return_tensors="pt")
        return {name: value for name, value in encoded.items() if isinstance(value, Tensor)}

    def text_of(tokens: Tensor) -> list[str]:
        return list(processor.batch_decode(tokens, skip_special_tokens=True))

    commit = getattr(model.config, "_commit_hash", None)
    loaded = Loaded(
        model=model,
        encode=encode,
        text_of=text_of,
        weights=weights.info("captioner", commit),
        device=loading.device,
        repeats_prompt=True,
        length_follows_size=True,
        control_words=control_words(processor.tokenizer),
    )
    return InProcessCaptioner(loaded, loading.make_batcher, profile.max_batch, loading.settings.deterministic)


def _load_model(weights: Weights, device: str) -> Any:
    with reading(weights):
        model = AutoModelForImageTextToText.from_pretrained(
            weights.location,
            dtype=getattr(torch, weights.dtype),
            use_safetensors=True,
            variant=weights.variant,
            revision=weights.hub_revision,
            subfolder=weights.subfolder,
        )
        return model.eval().to(device)


def _load_processor(weights: Weights) -> Any:
    try:
        # Not backend="pil": processors that also take videos (Qwen-VL's) do not have it.
        processor = AutoProcessor.from_pretrained(
            weights.location, revision=weights.hub_revision, subfolder=weights.subfolder
        )
    except ImportError as error:
        raise ImportError(f"the processor of {weights.id} needs torchvision; install torchvision") from error
    processor.tokenizer.padding_side = "left"
    return processor
