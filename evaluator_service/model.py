"""The models that evaluator_service loads, and how it processes a request: decode, batch, compute.

Whether images are of the profile's domain: a linear discriminant of what the scorer's first layers see.

The scorer's embeddings cannot tell: it was trained on the domain alone and maps everything else into it. Its first two
layers can (docs/measurements.md). Of each, the features are mean and deviation of every channel over the patches.
`research.photographs.domain` fits the discriminant.

Embeddings of texts, computed once: class names and captions recur in the requests of many images.

Structure agreement: how much of the source's outlines is preserved in another image.

It is the share of the source's edge pixels that have an edge pixel of the other image within a tolerance (the recall of
boundary benchmarks), corrected for chance like Cohen's kappa: (share - expected) / (1 - expected), where `expected` is
the share of all pixels in the area that have such a neighbour. Without the correction, rain or noise would agree with
everything. The measure is asymmetric on purpose: a counterfactual may add stars or a new background with all their
edges, but it must keep the outlines that carry the ground truth. On drawn scenes it detects images whose class was
replaced better than the uncorrected share or its F-measure do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from evaluator_service.judge import RemoteJudge
from evaluator_service.models_under_test.endpoint import EndpointModel
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.kinds import KINDS, LoadedModel, ModelKind
from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from evaluator_service.models_under_test.loading import load_alias
from evaluator_service.models_under_test.messages import Limits, default_memory_mib
from evaluator_service.models_under_test.outputs import finite
from evaluator_service.models_under_test.quarantine import Quarantine
from evaluator_service.models_under_test.question import AskedModel
from evaluator_service.models_under_test.uploads import RunningModel, UploadedModels
from evaluator_service.registration import find_move
from evaluator_service.shapes import shapes_reply
from evaluator_service.similarity import Scorer, TextEmbedder
from shared.media.images import Pixels, decode
from shared.media.moves import moved_back
from shared.problems import DeadlineExceeded, InvalidInput, NotFinite, NotFound, OutOfMemory
from shared.profiles.evaluator import Evaluator, ModelEndpoint, ModelUnderTest
from shared.profiles.judge_audit import revision_asked
from shared.schemas.base import Contract, ImagePayload
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
    ModelRequest,
    ModelsReply,
    ModelUnderTestInfo,
    PredictRequest,
    ShapesOutcome,
    ShapesReply,
    ShapesRequest,
    StructureReply,
    StructureRequest,
)
from shared.schemas.service import WeightsInfo
from shared.service.devices import info_in_tf32, plain_float_32, tensor_float_32
from shared.service.load_progress import reading
from shared.service.memory_limit import container_memory
from shared.service.model_service import MakeBatcher
from shared.service.settings import ServiceSettings

# By default cv2 starts a thread per core, though an image takes less than a millisecond.
cv2.setNumThreads(1)

TOLERANCE = 2 / 128  # of the short side: two pixels of an image of 128
# Only strong edges of the source count; in the other image weak edges also match them (night, fog).
SOURCE_THRESHOLDS = (60, 120)
IMAGE_THRESHOLDS = (30, 80)
EDGES_EVERYWHERE = 0.98  # from this share of pixels near an edge, an image is noise and would agree with anything
MASK_MARGIN = 0.025  # in shares of the short side; an outline lies on the border of its mask
MOST = 4096

Row = list[float]
Reply = TypeVar("Reply", bound=Contract)
Tested = LoadedModel | EndpointModel | AskedModel | RunningModel
Compute = Callable[[Sequence[str], float], Awaitable[list[Row]]]


class KnownTexts:
    """A cache of embeddings by text, in front of a batcher. Use it from one event loop.

    `compute` returns one row per text before a deadline. It gets at most `window` texts at a time from each request,
    because a batcher admits all items of a submission or none; this way a request of any size fits into its queue. The
    rows of finished windows stay in the cache when a later window fails. Concurrent requests for the same texts share
    one computation.
    """

    def __init__(self, compute: Compute, window: int) -> None:
        self._compute = compute
        self._window = max(1, window)
        self._cached: dict[str, Row] = {}
        self._pending: dict[str, asyncio.Future[dict[str, Row]]] = {}

    async def embeddings(self, texts: Sequence[str], deadline: float) -> list[Row]:
        """One row per text, in order. Raises what `compute` raises, and DeadlineExceeded (`time.monotonic()`)."""
        rows: dict[str, Row] = {}
        while missing := [text for text in dict.fromkeys(texts) if text not in rows]:
            if cached := {text: self._cached[text] for text in missing if text in self._cached}:
                rows |= cached
            elif new_texts := [text for text in missing if text not in self._pending]:
                rows |= await self._compute_window(new_texts[: self._window], deadline)
            else:
                joined = await self._join(self._pending[missing[0]], deadline)
                rows |= {text: joined[text] for text in missing if text in joined}
        return [rows[text] for text in texts]

    async def _compute_window(self, texts: Sequence[str], deadline: float) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        future: asyncio.Future[dict[str, Row]] = asyncio.get_running_loop().create_future()
        self._pending |= dict.fromkeys(texts, future)
        try:
            rows = dict(zip(texts, await self._compute(texts, deadline), strict=True))
            self._remember(rows)
        finally:  # if this failed, the requests that joined get no rows and compute these texts themselves
            for text in texts:
                del self._pending[text]
            future.set_result(rows)
        return rows

    async def _join(self, future: asyncio.Future[dict[str, Row]], deadline: float) -> dict[str, Row]:
        await asyncio.wait([future], timeout=max(0.0, deadline - time.monotonic()))
        if not future.done():
            raise DeadlineExceeded("the deadline passed before the model ran; allow more time or send less")
        return future.result()

    def _remember(self, rows: dict[str, Row]) -> None:
        if len(self._cached) + len(rows) > MOST:
            self._cached.clear()
        self._cached |= rows


class ModelsUnderTest:
    """Models by alias of the profile or by digest; `listed` and `weights` describe the operator's models."""

    def __init__(
        self, profile: Evaluator, device: str, uploads: UploadedModels, in_process: Mapping[str, InProcessModel]
    ) -> None:
        """Load the operator's models onto `device` (torch's name). `in_process` are objects, by name.

        Raises ValueError if an object has the name of an operator's model.
        """
        if taken := sorted(set(in_process) & set(profile.aliases)):
            raise ValueError(f"the profile has a model under test {taken[0]!r}; choose another name")
        self._named: dict[str, Tested] = {
            **{name: _load(model, device) for name, model in profile.models_under_test.items()},
            **{name: _endpoint_model(endpoint) for name, endpoint in profile.endpoints.items()},
        }
        self._named.update(in_process)
        self._uploads = uploads
        aliases: dict[str, ModelUnderTest | ModelEndpoint | InProcessModel] = {
            **profile.models_under_test,
            **profile.endpoints,
            **in_process,
        }
        infos = {name: model.info(f"under test: {name}") for name, model in aliases.items()}
        self.weights: list[WeightsInfo] = list(infos.values())
        self._listed = [
            ModelUnderTestInfo(
                name=name,
                kind=self._named[name].kind,
                classes=self._named[name].classes,
                weights=infos[name].id,
                revision=infos[name].revision,
                licence=model.licence,
                description=model.description,
            )
            for name, model in aliases.items()
        ]

    @property
    def listed(self) -> list[ModelUnderTestInfo]:
        """The operator's models, with the tokens of those that are asked a question until now."""
        usage = {name: model.asked for name, model in self._named.items() if isinstance(model, AskedModel)}
        return [model.model_copy(update={"asked": usage.get(model.name)}) for model in self._listed]

    @asynccontextmanager
    async def using(self, kind: ModelKind[Any], request: ModelRequest) -> AsyncIterator[Tested]:
        """The model of a request. Raises NotFound for an unknown alias, InvalidInput for a model of another kind."""
        async with self._model(request) as model:
            if model.kind != kind.name:
                other = KINDS[model.kind]
                raise InvalidInput(f"{request.model!r} is a {other.noun}; send it to {other.endpoint.path}")
            yield model

    async def examine(self, request: ExamineRequest, deadline: float) -> ExamineReply:
        """Kind and classes of an upload. Raises InvalidInput if it cannot be used."""
        model = await self._uploads.examine(request.upload, request.largest_side, deadline)
        return ExamineReply(kind=model.kind, classes=model.classes)

    @asynccontextmanager
    async def _model(self, request: ModelRequest) -> AsyncIterator[Tested]:
        if request.upload is not None:
            async with self._uploads.using(request.upload) as model:
                yield model
        elif request.model in self._named:
            yield self._named[request.model]
        else:
            aliases = ", ".join(sorted(self._named)) or "none"
            raise NotFound(f"no model under test is named {request.model!r}; this profile has: {aliases}")


def _endpoint_model(endpoint: ModelEndpoint) -> EndpointModel | AskedModel:
    """The model behind a server. Raises ValueError if it cannot be used."""
    if endpoint.protocol != "openai":
        return EndpointModel(endpoint)
    kind = KINDS[endpoint.kind]
    if kind.question is None:
        raise ValueError(f'protocol = "openai" asks which class an image shows; it cannot be a {kind.noun}')
    return kind.question(endpoint)


def _load(model: ModelUnderTest, device: str) -> LoadedModel:
    with reading(model):
        return load_alias(model, device=device)


WINDOWS = 4  # the number of requests for new texts that fill the queue


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Items with equal keys share a batch: the same kind of network, and the same network if there are several."""

    kind: Literal["model under test", "segmenter", "image embedding", "text embedding", "sentence embedding", "domain"]
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

    async def predict(self, request: ModelRequest, deadline: float, *, kind: ModelKind[Reply]) -> Reply:
        """The predictions of one model under test of a kind.

        Raises NotFound for an unknown alias, InvalidInput for a model of another kind.
        """
        async with self._tested.using(kind, request) as model:
            if isinstance(model, AskedModel):
                return cast(Reply, await model.predict(request, deadline))
            if kind.ask is not None:
                return await asyncio.to_thread(kind.ask, model, request)
            if isinstance(request, PredictRequest) and request.blind:
                raise InvalidInput(
                    f"{request.model!r} is asked no question, so it cannot be asked one without a picture"
                )
            if isinstance(model, EndpointModel):
                answers = await model.outputs([image.png for image in request.images], deadline)
            else:
                images = await _decode(request.images)
                if isinstance(model, RunningModel):
                    answers = await model.outputs(images, deadline)
                else:
                    key = BatchKey("model under test", model)
                    answers = await self._batcher.submit_all(images, key=key, deadline=deadline)
        return await asyncio.to_thread(kind.reply, model.classes, answers)

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

    async def structure(self, request: StructureRequest, deadline: float) -> StructureReply:
        """Structure agreement of each image with the source; raises InvalidInput if sizes differ."""
        return await asyncio.to_thread(_agreements, request)

    async def judge(self, request: JudgeRequest, deadline: float) -> JudgeReply:
        """The judge's answer for each image and question; raises InvalidInput if the profile has none."""
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
        plain = key.kind in ("model under test", "sentence embedding")
        try:
            with (plain_float_32 if plain else tensor_float_32)(torch, self.device):
                if key.kind in ("model under test", "segmenter"):
                    return finite(key.network.run(images))
                if key.kind == "domain":
                    return list(key.network.log_odds(images))
                if key.kind == "sentence embedding":
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
        infos.append(profile.judge.info("judge").model_copy(update={"revision": revision_asked(profile.judge)}))
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
        return NotFinite(f"the {kind} has NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16")
    return [float(value) for value in row]


async def _decode(payloads: Sequence[ImagePayload]) -> list[Pixels]:
    return await asyncio.to_thread(lambda: [decode(payload.png) for payload in payloads])


def _agreements(request: StructureRequest) -> StructureReply:
    source = decode(request.source.png)
    mask = None if request.mask is None else decode(request.mask.png, "L")
    images = [decode(payload.png) for payload in request.images]
    try:
        moves = [find_move(source, image) for image in images] if request.find_moves else []
        images = [
            image if move is None else moved_back(image, source, move) for image, move in zip_longest(images, moves)
        ]
        return StructureReply(agreements=[agreement(source, image, mask) for image in images], moves=moves)
    except ValueError as error:
        raise InvalidInput(str(error)) from error


@dataclass(frozen=True, slots=True, eq=False)
class Discriminant:
    """The log odds of being outside are Σ weightᵢ (featureᵢ − meanᵢ) / scaleᵢ + bias; above 0 an image is outside."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: float

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a file that `save` wrote. Raises FileNotFoundError."""
        tensors = {name: value.astype(np.float64) for name, value in load_file(file).items()}
        return cls(tensors["mean"], tensors["scale"], tensors["weights"], float(tensors["bias"][0]))

    def save(self, file: Path) -> None:
        """Write safetensors in single precision."""
        tensors = {"mean": self.mean, "scale": self.scale, "weights": self.weights, "bias": np.array([self.bias])}
        save_file({name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}, file)

    def log_odds(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each row of features."""
        return (features - self.mean) / self.scale @ self.weights + self.bias


class DomainJudge:
    """A scorer with the discriminant that belongs to its weights."""

    def __init__(self, scorer: Scorer, statistics: Path) -> None:
        self._scorer = scorer
        self._discriminant = Discriminant.load(statistics)

    def log_odds(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """The log odds of each image to be outside the domain."""
        return self._discriminant.log_odds(self._scorer.layer_statistics(images))


def agreement(source: Pixels, image: Pixels, mask: Pixels | None = None) -> float:
    """Share of the source's edges that the image keeps (0: chance level, 1: all), inside `mask` (255) if given.

    Both images are height × width × 3 of equal size. The result is 1.0 for a source without edges there, and 0.0
    for an image with edges everywhere.
    """
    if image.shape != source.shape or (mask is not None and mask.shape != source.shape[:2]):
        raise ValueError("source, image and mask must have the same size; send the image as it came from the editor")
    short = min(source.shape[:2])
    inside = np.ones(source.shape[:2], np.bool_)
    if mask is not None:
        inside = _dilate(mask > 127, max(1, round(MASK_MARGIN * short)))
    edges = _edges(source, SOURCE_THRESHOLDS) & inside
    if not edges.any():
        return 1.0
    near = _dilate(_edges(image, IMAGE_THRESHOLDS), max(1, round(TOLERANCE * short)))
    matched, expected = near[edges].mean(), near[inside].mean()
    return float(max(0.0, (matched - expected) / (1 - expected))) if expected < EDGES_EVERYWHERE else 0.0


def _edges(image: Pixels, thresholds: tuple[int, int]) -> NDArray[np.bool_]:
    gray = cv2.cvtColor(cv2.GaussianBlur(image, (3, 3), 0.8), cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.Canny(gray, *thresholds) > 0)


def _dilate(region: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    return np.asarray(cv2.dilate(region.astype(np.uint8), kernel) > 0)
