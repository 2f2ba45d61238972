"""The processor of Qwen-Image-Edit's text encoder for images and text, without its part for videos.

transformers' own needs torchvision for videos, which no pipeline of diffusers sends.
"""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.processing_utils import ProcessorMixin

from shared.weights import Weights

FOLDER = "processor"


class ImageTextProcessor(Qwen2VLProcessor):  # type: ignore[misc]  # transformers has no types
    """`Qwen2VLProcessor` for images and text."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str | None = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def load_processor(weights: Weights) -> ImageTextProcessor:
    """The processor in a pipeline's folder, with Pillow's resizing. Raises OSError if files are missing."""
    parts = [
        cls.from_pretrained(weights.location, subfolder=FOLDER, revision=weights.hub_revision, local_files_only=True)
        for cls in (Qwen2VLImageProcessorPil, Qwen2Tokenizer)
    ]
    return ImageTextProcessor(*parts)
