"""Small services for LANCE, and a source image with its task."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from gateway.methods.counterfactual import MethodImage, TaskDescription
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.evaluation import EmbedReply, EmbedRequest, EmbedTextsReply, EmbedTextsRequest
from shared.schemas.language import GenerateReply, GenerateRequest
from tests.support.logged_requests import LoggedServices
from tests.support.small_services import CAPTION, CLASSES, SmallServices


def claim(old: str, new: str, caption: str | None = None) -> dict[str, str]:
    """An edit as the language model writes it; it keeps to what it says unless given another caption."""
    return {
        "from_phrase": old,
        "from_value": old.split()[-1],
        "to_phrase": new,
        "to_value": new.split()[-1],
        "caption": CAPTION.replace(old, new) if caption is None else caption,
    }


EDITS: dict[str, list[dict[str, str]]] = {
    "subject": [claim("car", "bus")],
    "background": [claim("on a street", "on a beach"), claim("on a street", "in a well-kept park")],
    "adjective": [claim("red", "blue", CAPTION.replace("red", "blue").replace("sunny", "rainy"))],
    "weather": [claim("sunny", "rainy"), claim("sunny", "rainy")],
}

SOURCE = MethodImage("source-1", ImagePayload(png=encode(np.full((32, 32, 3), 128, np.uint8))), "car")
TASK = TaskDescription("name the vehicle", tuple(CLASSES))


class LanceServices(SmallServices):
    """Edits by factor, and vectors that differ from one image or text to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.app.post("/v1/text-embeddings")(self._text_embeddings)

    def _generate(self, request: GenerateRequest) -> GenerateReply:
        self._called("generate")
        question = dict(line.split(": ", 1) for line in request.messages[-1].content.splitlines() if ": " in line)
        value = {"edits": EDITS.get(question["Factor"], [])[: int(question["Edits"])]}
        return GenerateReply(value=value, text=json.dumps(value), attempts=1, prompt_tokens=1, completion_tokens=1)

    def _embeddings(self, request: EmbedRequest) -> EmbedReply:
        self._called("embed")
        return EmbedReply(
            images=[vector(image.png) for image in request.images],
            texts=[vector(text.encode()) for text in request.texts],
            logit_scale=10.0,
        )

    def _text_embeddings(self, request: EmbedTextsRequest) -> EmbedTextsReply:
        self._called("embed_texts")
        return EmbedTextsReply(texts=[vector(text.encode()) for text in request.texts])


class CaptioningServices(LoggedServices):
    """The clients, with captions that a test sets."""

    source_caption = CAPTION
    new_caption = CAPTION

    def caption(self, request: CaptionRequest) -> CaptionReply:
        return CaptionReply(
            captions=[self.source_caption if image == SOURCE.image else self.new_caption for image in request.images]
        )


def vector(content: bytes) -> list[float]:
    numbers = np.random.default_rng(list(hashlib.sha256(content).digest())).normal(size=8)
    return [float(value) for value in numbers / np.linalg.norm(numbers)]
