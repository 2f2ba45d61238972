"""The models that evaluator_service loads, and how it processes a request: decode, batch, compute."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from evaluator_service.domain import DomainJudge
from evaluator_service.judge import RemoteJudge
from evaluator_service.known_texts import KnownTexts
from evaluator_service.models_under_test.endpoint import EndpointClassifier, EndpointSegmenter
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.messages import Limits, default_memory_mib
from evaluator_service.models_under_test.outputs import NOT_FINITE
from evaluator_service.models_under_test.quarantine import Quarantine
from evaluator_service.models_under_test.segmentation import ImageSegmenter
from evaluator_service.models_under_test.tested import ModelsUnderTest
from evaluator_service.models_under_test.uploads import RunningModel, UploadedModels
from evaluator_service.shapes import shapes_reply
from evaluator_service.similarity import Scorer, TextEmbedder
from evaluator_service.structure import agreement
from shared.devices import info_in_tf32, plain_float_32, tensor_float_32
from shared.images import Pixels, decode, encode
from shared.load_progress import reading
from shared.memory_limit import container_memory
from shared.problems import InvalidInput, NotFinite, OutOfMemory
from shared.profile_evaluator import Evaluator
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import (
    DomainReply,
    DomainRequest,
    EmbedReply,
    EmbedRequest,
    EmbedTextsReply,
    EmbedTextsRequest,
    ExamineReply,
    ExamineRequest,
    JudgeReply,
    JudgeRequest,
    ModelsReply,
    PredictReply,
    PredictRequest,
    SegmentReply,
    SegmentRequest,
    ShapesOutcome,
    ShapesReply,
    ShapesRequest,
    StructureReply,
    StructureRequest,
)
from shared.schemas.service import WeightsInfo
from shared.service import MakeBatcher
from shared.service_settings import ServiceSettings

WINDOWS = 4  # the number of requests for new texts that fill the queue


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Items with equal keys share a batch: the same kind of network, and the same network if there are several."""

    kind: Literal["classifier", "segmenter", "image embedding", "text embedding", "sentence embedding", "domain"]
    network: Any = None
    length: int = 0  # of padded sentences, in tokens


class EvaluatorModel:
    """The models under test and the scorer, behind one batcher whose thread runs them all."""

    def __init__(
        self,
        profile: Evaluator,
        device: str,
        make_batcher: MakeBatcher,
        settings: ServiceSettings,
        in_process: Mapping[str, InProcessModel] | None = None,
    ) -> None:
        """Load the profile's weights onto `device` (torch's name); `settings` limit uploaded models."""
        self.device = device
        self._scorer = Scorer(profile.scorer, device=device)
        self._quarantine = Quarantine(settings.quarantine)
        limits = _limits(settings, device, settings.max_batch or profile.max_batch)
        uploads = UploadedModels(settings.model_origin, limits, self._quarantine, make_batcher)
        self._tested = ModelsUnderTest(profile, device, uploads, in_process or {})
        embedder = profile.text_embedder
        self._text_embedder = None if embedder is None else TextEmbedder(embedder, device=device)
        self.weights = _weights_infos(profile, self._tested.weights, device)
        self._judge = profile.segmenter
        self._segmenter: ImageSegmenter | None = None
        if self._judge is not None:
            with reading(self._judge):
                self._segmenter = ImageSegmenter(self._judge, device=device)
        self._scorer.embed_texts(["warm-up"])
        self._second: Scorer | None = None
        if profile.second_scorer is not None:
            self._second = Scorer(profile.second_scorer, device=device)
            self._second.embed_texts(["warm-up"])
        domain = profile.domain
        self._domain = None if domain is None else DomainJudge(self._scorer, domain.statistics)
        self._vision_judge = None if profile.judge is None else RemoteJudge.connect(profile.judge)
        self._batcher = make_batcher(self._compute, profile.max_batch, on_stop=uploads.close)
        window = self._batcher.policy.capacity // WINDOWS
        self._texts = KnownTexts(partial(self._embed_new_texts, self._scorer), window)
        self._second_texts = KnownTexts(partial(self._embed_new_texts, self._second), window)
        self._sentences = KnownTexts(self._embed_new_sentences, window)

    async def predict(self, request: PredictRequest, deadline: float) -> PredictReply:
        """Class probabilities of one model under test; raises NotFound for an unknown alias."""
        async with self._tested.classifier(request) as network:
            if isinstance(network, EndpointClassifier):
                rows = await network.probabilities([image.png for image in request.images], deadline)
                return PredictReply(classes=network.classes, probabilities=rows)
            images = await _decode(request.images)
            if isinstance(network, RunningModel):
                rows = [row.tolist() for row in await network.outputs(images, deadline)]
            else:
                rows = await self._batcher.submit_all(images, key=BatchKey("classifier", network), deadline=deadline)
            return PredictReply(classes=network.classes, probabilities=rows)

    async def segment(self, request: SegmentRequest, deadline: float) -> SegmentReply:
        """Label maps of one segmenter under test; raises as `predict` does."""
        async with self._tested.segmenter(request) as network:
            if isinstance(network, EndpointSegmenter):
                maps = await network.label_maps([image.png for image in request.images], deadline)
            else:
                images = await _decode(request.images)
                if isinstance(network, RunningModel):
                    maps = await network.outputs(images, deadline)
                else:
                    key = BatchKey("segmenter", network)
                    maps = await self._batcher.submit_all(images, key=key, deadline=deadline)
        pngs = await asyncio.to_thread(lambda: [encode(label_map) for label_map in maps])
        return SegmentReply(classes=network.classes, maps=[ImagePayload(png=png) for png in pngs])

    async def examine(self, request: ExamineRequest, deadline: float) -> ExamineReply:
        """Kind and classes of an uploaded model; raises InvalidInput if it cannot be used."""
        return await self._tested.examine(request, deadline)

    def models(self) -> ModelsReply:
        """The operator's models under test, and the quarantined uploads."""
        return ModelsReply(models=self._tested.listed, quarantined=self._quarantine.entries())

    async def embed(self, request: EmbedRequest, deadline: float) -> EmbedReply:
        """Embeddings of images and texts in the scorer's space."""
        return await self._embed(request, self._scorer, self._texts, deadline)

    async def second_embed(self, request: EmbedRequest, deadline: float) -> EmbedReply:
        """The same in the second scorer's space; raises InvalidInput if the profile has none."""
        if self._second is None:
            raise InvalidInput("this profile has no second scorer; name one as [evaluator.second_scorer]")
        return await self._embed(request, self._second, self._second_texts, deadline)

    async def _embed(self, request: EmbedRequest, scorer: Scorer, texts: KnownTexts, deadline: float) -> EmbedReply:
        images = await _decode(request.images)
        of_images, of_texts = await asyncio.gather(
            self._batcher.submit_all(images, key=BatchKey("image embedding", scorer), deadline=deadline),
            texts.embeddings(request.texts, deadline),
        )
        return EmbedReply(images=of_images, texts=of_texts, logit_scale=scorer.logit_scale)

    async def domain(self, request: DomainRequest, deadline: float) -> DomainReply:
        """The log odds of images to be outside the profile's domain; raises InvalidInput if it takes all images."""
        if self._domain is None:
            raise InvalidInput("this profile takes all images; describe its domain as [evaluator.domain]")
        images = await _decode(request.images)
        key = BatchKey("domain", self._domain)
        return DomainReply(log_odds=await self._batcher.submit_all(images, key=key, deadline=deadline))

    async def embed_texts(self, request: EmbedTextsRequest, deadline: float) -> EmbedTextsReply:
        """Embeddings of texts by the text embedder; raises InvalidInput if the profile has none."""
        if self._text_embedder is None:
            raise InvalidInput("this profile has no text embedder; name one as [evaluator.text_embedder]")
        return EmbedTextsReply(texts=await self._sentences.embeddings(request.texts, deadline))

    async def structure(self, request: StructureRequest) -> StructureReply:
        """Structure agreement of each image with the source; raises InvalidInput if sizes differ."""
        return await asyncio.to_thread(_agreements, request)

    async def judge(self, request: JudgeRequest, deadline: float) -> JudgeReply:
        """P(yes) of the judge for each image and question; raises InvalidInput if the profile has none."""
        if self._vision_judge is None:
            raise InvalidInput("this profile has no judge; name a vision server as [evaluator.judge]")
        return await self._vision_judge.judge(request, deadline)

    async def shapes(self, request: ShapesRequest, deadline: float) -> ShapesReply:
        """Whether shapes stayed in place; raises InvalidInput if sizes differ."""
        if self._judge is None or self._segmenter is None:
            empty = ShapesOutcome(classes=[], things=[])
            return ShapesReply(judged=[], unjudged=[], things=[], outcomes=[empty] * len(request.images))
        images = await _decode([request.source, *request.images])
        maps = await self._batcher.submit_all(images, key=BatchKey("segmenter", self._segmenter), deadline=deadline)
        places = self._judge.places(self._segmenter.classes, request.classes)
        return await asyncio.to_thread(shapes_reply, request, maps, places)

    async def _embed_new_texts(self, scorer: Scorer | None, texts: Sequence[str], deadline: float) -> list[list[float]]:
        return await self._batcher.submit_all(texts, key=BatchKey("text embedding", scorer), deadline=deadline)

    async def _embed_new_sentences(self, texts: Sequence[str], deadline: float) -> list[list[float]]:
        embedder = self._text_embedder
        assert embedder is not None
        rows = await asyncio.to_thread(lambda: [embedder.tokens(text) for text in texts])
        lengths = [embedder.padded_length(len(row)) for row in rows]
        embeddings: dict[int, list[float]] = {}
        for length in dict.fromkeys(lengths):
            indices = [index for index, row_length in enumerate(lengths) if row_length == length]
            batch = [rows[index] for index in indices]
            key = BatchKey("sentence embedding", length=length)
            embeddings |= zip(indices, await self._batcher.submit_all(batch, key=key, deadline=deadline), strict=True)
        return [embeddings[index] for index in range(len(rows))]

    def _compute(self, key: BatchKey, items: Sequence[Pixels | str | tuple[int, ...]]) -> list[Any]:
        texts = [item for item in items if isinstance(item, str)]
        sentences = [item for item in items if isinstance(item, tuple)]
        images = [item for item in items if not isinstance(item, str | tuple)]
        plain = key.kind in ("classifier", "sentence embedding")
        plain |= key.kind == "segmenter" and key.network is not self._segmenter
        try:
            with (plain_float_32 if plain else tensor_float_32)(torch, self.device):
                if key.kind == "segmenter":
                    return list(key.network.label_maps(images))
                if key.kind == "domain":
                    return list(key.network.log_odds(images))
                if key.kind == "classifier":
                    rows = key.network.probabilities(images)
                elif key.kind == "sentence embedding":
                    assert self._text_embedder is not None
                    rows = self._text_embedder.embed(sentences, key.length)
                else:
                    scorer: Scorer = key.network
                    rows = scorer.embed_images(images) if images else scorer.embed_texts(texts)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise OutOfMemory(f"the device has too little memory for {len(items)} items at once") from error
        return [_values(key.kind, row) for row in rows]


def _weights_infos(profile: Evaluator, tested: Sequence[WeightsInfo], device: str) -> list[WeightsInfo]:
    """All weights of a profile's section, with those of the models under test."""
    infos = [info_in_tf32(profile.scorer.info("scorer"), device), *tested]
    if profile.text_embedder is not None:
        infos.append(profile.text_embedder.info("text embedder"))
    if profile.segmenter is not None:
        infos += [info_in_tf32(info, device) for info in profile.segmenter.infos()]
    if profile.second_scorer is not None:
        infos.append(info_in_tf32(profile.second_scorer.info("second scorer"), device))
    if profile.judge is not None:
        infos.append(profile.judge.info("judge"))
    return infos


def _limits(settings: ServiceSettings, device: str, max_batch: int) -> Limits:
    return Limits(
        device=device,
        memory_mib=settings.upload_memory_mib or default_memory_mib(device, container_memory()),
        load_seconds=settings.upload_load_seconds,
        batch_seconds=settings.upload_batch_seconds,
        max_batch=max_batch,
        threads=torch.get_num_threads(),
        deterministic=settings.deterministic,
    )


def _values(kind: str, row: Sequence[float] | NDArray[np.float64]) -> list[float] | NotFinite:
    if not np.isfinite(row).all():
        if kind == "classifier":
            return NotFinite(NOT_FINITE)
        return NotFinite(f"the {kind} has NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16")
    return [float(value) for value in row]


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
