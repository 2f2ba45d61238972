"""What evaluator_service loads, and a request's way through it: decode, batch, compute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from evaluator_service.models_under_test.classification import ImageClassifier
from evaluator_service.similarity import Scorer
from evaluator_service.structure import agreement
from shared.images import Pixels, decode
from shared.problems import InvalidInput, NotFound, OutOfMemory
from shared.profiles import Evaluator
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import (
    EmbedReply,
    EmbedRequest,
    ModelUnderTestInfo,
    PredictReply,
    PredictRequest,
    StructureReply,
    StructureRequest,
)
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher

KNOWN_TEXTS = 4096


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What items must agree on to be computed together: the network, by its kind (and alias, if it is under test)."""

    kind: Literal["classifier", "image embedding", "text embedding"]
    alias: str = ""


class EvaluatorModel:
    """The models under test and the scorer, behind one batcher whose thread owns them all."""

    def __init__(self, profile: Evaluator, device: str, make_batcher: MakeBatcher) -> None:
        """Load the profile's weights onto `device` (torch's name)."""
        self.device = device
        self._scorer = Scorer(profile.scorer, device=device)
        self._classifiers = {
            alias: ImageClassifier(model, device=device) for alias, model in profile.models_under_test.items()
        }
        infos = {alias: model.info(f"under test: {alias}") for alias, model in profile.models_under_test.items()}
        self.weights: list[WeightsInfo] = [profile.scorer.info("scorer"), *infos.values()]
        self.models_under_test = [
            ModelUnderTestInfo(
                name=alias,
                task=model.task,
                classes=self._classifiers[alias].classes,
                weights=infos[alias].id,
                revision=infos[alias].revision,
                licence=model.licence,
                description=model.description,
            )
            for alias, model in profile.models_under_test.items()
        ]
        self._scorer.embed_texts(["warm-up"])
        self._known_texts: dict[str, list[float]] = {}
        self._batcher = make_batcher(self._compute, profile.max_batch)

    async def predict(self, request: PredictRequest, deadline: float) -> PredictReply:
        """Class probabilities by one model under test; raises NotFound for an alias that does not exist."""
        if request.model not in self._classifiers:
            known = ", ".join(sorted(self._classifiers)) or "none"
            raise NotFound(f"no model under test is named {request.model!r}; this profile has: {known}")
        images = await _decode(request.images)
        rows = await self._batcher.submit_all(images, key=BatchKey("classifier", request.model), deadline=deadline)
        return PredictReply(classes=self._classifiers[request.model].classes, probabilities=rows)

    async def embed(self, request: EmbedRequest, deadline: float) -> EmbedReply:
        """Embeddings of images and texts in the scorer's space."""
        images = await _decode(request.images)
        of_images, of_texts = await asyncio.gather(
            self._batcher.submit_all(images, key=BatchKey("image embedding"), deadline=deadline),
            self._embed_texts(request.texts, deadline),
        )
        return EmbedReply(images=of_images, texts=of_texts, logit_scale=self._scorer.logit_scale)

    async def structure(self, request: StructureRequest) -> StructureReply:
        """Structure agreement of each image with the source; raises InvalidInput where sizes differ."""
        return await asyncio.to_thread(_agreements, request)

    async def _embed_texts(self, texts: Sequence[str], deadline: float) -> list[list[float]]:
        """Texts recur (every image is held against the same class names), so their embeddings are kept."""
        rows = {text: self._known_texts[text] for text in texts if text in self._known_texts}
        missing = [text for text in dict.fromkeys(texts) if text not in rows]
        computed = await self._batcher.submit_all(missing, key=BatchKey("text embedding"), deadline=deadline)
        if len(self._known_texts) + len(missing) > KNOWN_TEXTS:
            self._known_texts.clear()
        new = dict(zip(missing, computed, strict=True))
        self._known_texts |= new
        rows |= new
        return [rows[text] for text in texts]

    def _compute(self, key: BatchKey, items: Sequence[Pixels | str]) -> list[list[float]]:
        texts = [item for item in items if isinstance(item, str)]
        images = [item for item in items if not isinstance(item, str)]
        try:
            if key.kind == "classifier":
                rows = self._classifiers[key.alias].probabilities(images)
            elif key.kind == "image embedding":
                rows = self._scorer.embed_images(images)
            else:
                rows = self._scorer.embed_texts(texts)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(f"the device has too little memory for {len(items)} items at once") from error
        return [[float(value) for value in row] for row in rows]


def choose_device(name: str) -> str:
    """`auto` is the first GPU where there is one; other names are torch's own (`cpu`, `cuda:1`, ...)."""
    if name != "auto":
        return name
    return "cuda:0" if torch.cuda.is_available() else "cpu"


async def _decode(payloads: Sequence[ImagePayload]) -> list[Pixels]:
    return await asyncio.to_thread(lambda: [decode(payload.png) for payload in payloads])


def _agreements(request: StructureRequest) -> StructureReply:
    source = decode(request.source.png)
    mask = None if request.mask is None else decode(request.mask.png, "L")
    images = [decode(payload.png) for payload in request.images]
    try:
        return StructureReply(agreements=[agreement(source, image, mask) for image in images])
    except ValueError as error:
        raise InvalidInput(str(error)) from error
