"""Requests to caption_service and evaluator_service at full size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from research.full_services.generating import picture
from research.full_services.generators import CAPTION, NIGHT
from research.full_services.served import Client, Step, weights, write_profile
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.evaluation import EmbedRequest, PredictRequest, ShapesRequest
from shared.service.endpoints import Services

TOKENS = 20
MODELS = ("resnet-50", "vit")


def captioner_profile(folder: Path) -> Path:
    """Write the profile of the captioner in `folder`."""
    table = f"weights = {weights(folder, 'captioner', 'bfloat16')}"
    return write_profile(folder, caption=f'[caption]\nengine = "blip2"\nmax_batch = 4\n{table}')


def evaluator_profile(folder: Path) -> Path:
    """Write the profile of the evaluator's networks in `folder`."""
    tables = [f"models_under_test.{name} = {weights(folder, name, 'float32')}" for name in MODELS]
    tables += [f"{name} = {weights(folder, name, 'float32')}" for name in ("scorer", "segmenter")]
    return write_profile(folder, evaluator="\n".join(["[evaluator]", *tables]))


def caption_steps() -> Mapping[str, Step]:
    """Caption one picture, then four at once."""
    return {f"a caption of {TOKENS} tokens": _captions(1), f"four captions of {TOKENS} tokens": _captions(4)}


def evaluator_steps() -> Mapping[str, Step]:
    """Embed, predict by both classifiers, compare shapes."""
    predictions = {f"predict four images, {name}": _predictions(name) for name in MODELS}
    return {"embed four images and 20 texts": _embeddings, **predictions, "compare shapes of two images": _shapes}


def _pictures(count: int) -> list[ImagePayload]:
    scene = picture(512)
    return [ImagePayload(png=encode(np.roll(scene, 40 * number, axis=1))) for number in range(count)]


def _captions(count: int) -> Step:
    async def step(client: Client) -> dict[str, Any]:
        request = CaptionRequest(images=_pictures(count), prompt="A ", min_tokens=TOKENS, max_tokens=TOKENS)
        reply = await client.ask(Services.caption, request)
        return {"captions": len(reply.captions)}

    return step


def _predictions(model: str) -> Step:
    async def step(client: Client) -> dict[str, Any]:
        reply = await client.ask(Services.predict, PredictRequest(model=model, images=_pictures(4)))
        return {"images": len(reply.probabilities), "classes": len(reply.classes)}

    return step


async def _embeddings(client: Client) -> dict[str, Any]:
    texts = [f"{CAPTION} {NIGHT} {number}" for number in range(20)]
    reply = await client.ask(Services.embed, EmbedRequest(images=_pictures(4), texts=texts))
    return {"images": len(reply.images), "texts": len(reply.texts)}


async def _shapes(client: Client) -> dict[str, Any]:
    source, image = _pictures(2)
    classes = [f"LABEL_{number}" for number in range(150)]
    reply = await client.ask(Services.shapes, ShapesRequest(source=source, images=[image], classes=classes, things=[]))
    return {"judged": len(reply.judged)}
