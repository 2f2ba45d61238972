"""BLIP-2 in process (DILLEMA's and LANCE's captioner, arXiv 2301.12597): the caption continues the prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoImageProcessor, AutoTokenizer, Blip2ForConditionalGeneration, Blip2Processor

from caption_service.in_process import InProcessCaptioner, Loaded
from shared.media.images import Pixels
from shared.profiles.profile import Caption
from shared.service.control_words import control_words
from shared.service.devices import Loading
from shared.service.load_progress import reading


def load_blip2(loading: Loading[Caption]) -> InProcessCaptioner:
    """Load the profile's weights, safetensors only, with Pillow's image processor."""
    profile = loading.weights
    weights = profile.weights
    assert weights is not None
    at = {"revision": weights.hub_revision, "subfolder": weights.subfolder}
    with reading(weights):
        model = Blip2ForConditionalGeneration.from_pretrained(
            weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, variant=weights.variant, **at
        )
        model.eval().to(loading.device)
    tokenizer = AutoTokenizer.from_pretrained(weights.location, padding_side="left", **at)
    images = AutoImageProcessor.from_pretrained(weights.location, backend="pil", **at)
    processor = Blip2Processor(images, tokenizer, num_query_tokens=model.config.num_query_tokens)
    _name_image_token(model, tokenizer.convert_tokens_to_ids(processor.image_token.content))

    def encode(pixels: Sequence[Pixels], prompt: str) -> dict[str, Tensor]:
        # All rows share one prompt, so none is padded.
        return dict(processor(images=list(pixels), text=[prompt] * len(pixels), return_tensors="pt"))

    def text_of(tokens: Tensor) -> list[str]:
        return list(tokenizer.batch_decode(tokens, skip_special_tokens=True))

    commit = getattr(model.config, "_commit_hash", None)
    loaded = Loaded(
        model=model,
        encode=encode,
        text_of=text_of,
        weights=weights.info("captioner", commit),
        device=loading.device,
        repeats_prompt=bool(model.config.use_decoder_only_language_model),
        length_follows_size=False,
        control_words=control_words(processor.tokenizer),
    )
    return InProcessCaptioner(loaded, loading.make_batcher, profile.max_batch, loading.settings.deterministic)


def _name_image_token(model: Blip2ForConditionalGeneration, token: int) -> None:
    """Add the image placeholder token: published checkpoints predate it, so their configuration names none."""
    if model.config.image_token_index is None:
        model.config.image_token_index = token
        if token >= model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(token + 1, mean_resizing=False)
