"""The four services' contracts answered by arithmetic: for tests of the work's state, where quality does not matter."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
from fastapi import FastAPI

from gateway.model_services.clients import ModelServices
from shared.media.images import Pixels, decode, encode
from shared.problems import Problem
from shared.schemas.base import ImagePayload
from shared.schemas.boxes import DetectReply, DetectRequest, PredictedBox
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.diffusion import (
    ComposeReply,
    ComposeRequest,
    CorruptReply,
    CorruptRequest,
    EditEvaluations,
    EditReply,
    EditRequest,
    InstructReply,
    InstructRequest,
    ProtectedRegion,
    ProtectionReply,
    RegionOutcome,
    RenderReply,
    RenderRequest,
)
from shared.schemas.evaluation import (
    DomainReply,
    DomainRequest,
    EmbedReply,
    EmbedRequest,
    ExamineReply,
    ExamineRequest,
    ModelsReply,
    ModelUnderTestInfo,
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
from shared.schemas.language import GenerateReply, GenerateRequest
from shared.schemas.service import SERVICES, ServiceInfo, ServiceName, WeightsInfo
from shared.service import problem_replies
from tests.support.listening import listen

CAPTION = "A red car on a street. It is a sunny day."
CLASSES = ["car", "bus", "boat"]
ROAD_CLASSES = ["sky", "road", "car"]
SEGMENTER = "brightness-segmenter"
DETECTOR, DETECTED = "colour-detector", ["car", "bus", "tram"]  # of red, green and blue rectangles

Clients = TypeVar("Clients", bound=ModelServices)
MODELS = ("street-classifier", "street-classifier-night-bus", "m1", "m2")  # two are defaults of profile `tiny`
ANSWERS: dict[str, Any] = {
    "keywords": [{"phrase": "sunny", "factor": "weather", "value": "sunny"}],
    "alternatives": [{"phrase": "rainy", "value": "rain"}, {"phrase": "foggy", "value": "fog"}],
}


class SmallServices:
    """What the endpoints count and how a test makes them fail: `troubles` are raised once each, oldest first.

    `looks`: captions tell pictures apart, by the first grey level: a car, or in every third a boat.
    Each call takes `seconds` (or what a file says, now), and waits while `gate` is closed.
    """

    def __init__(self, seconds: float | Path = 0.0) -> None:
        self.seconds = seconds
        self.calls: Counter[str] = Counter()
        self.troubles: list[Problem] = []
        self.revision = "1"
        self.weights: list[WeightsInfo] = []
        self.judges = True
        self.looks = False
        self.gate = threading.Event()
        self.gate.set()
        self.app = FastAPI()
        problem_replies.install(self.app)
        self.app.get("/v1/info")(self._info)
        self.app.get("/v1/models")(self._models)
        answers: dict[str, Callable[..., object]] = {
            "/v1/captions": self._captions,
            "/v1/generate": self._generate,
            "/v1/renderings": self._renderings,
            "/v1/edits": self._edits,
            "/v1/corruptions": self._corruptions,
            "/v1/compositions": self._compositions,
            "/v1/instructed-edits": self._instructed_edits,
            "/v1/predictions": self._predictions,
            "/v1/segmentations": self._segmentations,
            "/v1/detections": self._detections,
            "/v1/examinations": self._examinations,
            "/v1/embeddings": self._embeddings,
            "/v1/domain": self._domain,
            "/v1/structure": self._structure,
            "/v1/shapes": self._shapes,
        }
        for path, answer in answers.items():
            self.app.post(path)(answer)

    def _called(self, name: str) -> None:
        self.gate.wait(300)  # only a hang takes so long
        began = time.monotonic()
        while (remaining := began + self._pace() - time.monotonic()) > 0:
            time.sleep(min(remaining, 0.1) if isinstance(self.seconds, Path) else remaining)
        if self.troubles:
            raise self.troubles.pop(0)
        self.calls[name] += 1

    def _pace(self) -> float:
        return float(self.seconds.read_text()) if isinstance(self.seconds, Path) else self.seconds

    def _info(self) -> ServiceInfo:
        return ServiceInfo(
            service="small",
            profile="tiny",
            device="cpu",
            deterministic=True,
            revision=self.revision,
            weights=self.weights,
            version="0",
        )

    def _models(self) -> ModelsReply:
        return ModelsReply(
            models=[
                ModelUnderTestInfo(
                    name=name,
                    kind="classification",
                    classes=CLASSES,
                    weights="none",
                    revision="1",
                    licence="Apache-2.0",
                )
                for name in MODELS
            ]
            + [
                ModelUnderTestInfo(
                    name=SEGMENTER,
                    kind="segmentation",
                    classes=ROAD_CLASSES,
                    weights="none",
                    revision="1",
                    licence="Apache-2.0",
                ),
                ModelUnderTestInfo(
                    name=DETECTOR,
                    kind="detection",
                    classes=DETECTED,
                    weights="none",
                    revision="1",
                    licence="Apache-2.0",
                ),
            ]
        )

    def _captions(self, request: CaptionRequest) -> CaptionReply:
        self._called("caption")
        cars = [not self.looks or decode(image.png)[0, 0, 0] % 3 for image in request.images]
        return CaptionReply(captions=[CAPTION if car else CAPTION.replace("car", "boat") for car in cars])

    def _generate(self, request: GenerateRequest) -> GenerateReply:
        self._called("generate")
        (name,) = request.json_schema["properties"]
        value: Any = ANSWERS.get(name)
        if value is None:
            value = CAPTION
            for line in request.messages[-1].content.splitlines():
                if line.startswith("Change: "):
                    value = value.replace(*line.removeprefix("Change: ").split(" -> "))
        document = {name: value}
        return GenerateReply(
            value=document, text=json.dumps(document), attempts=1, prompt_tokens=1, completion_tokens=1
        )

    def _renderings(self, request: RenderRequest) -> RenderReply:
        self._called("render")
        source = decode(request.source.png)
        images = []
        for rendering in request.renderings:
            seed = hashlib.sha256(f"{rendering.prompt}/{rendering.seed}".encode()).digest()
            noise = np.random.default_rng(list(seed)).integers(0, 60, source.shape)
            images.append(ImagePayload(png=encode(((source.astype(int) + noise) % 256).astype(np.uint8))))
        control = ImagePayload(png=encode(source[..., 0]))
        regions = {rendering.region for rendering in request.renderings}
        return RenderReply(
            images=images,
            controls=dict.fromkeys(regions, control),
            keep_mask=None,
            evaluations=request.steps,
            protection=None if request.protection is None else self._protected(request, control),
        )

    def _protected(self, request: RenderRequest, mask: ImagePayload) -> ProtectionReply:
        """A region that is lost in fog."""
        label = request.protection.classes[0] if request.protection else ""
        ious = [0.2 if "fog" in rendering.prompt else 0.9 for rendering in request.renderings]
        return ProtectionReply(
            mask=mask,
            regions=[ProtectedRegion(label=label, share=0.01, box=(0, 0, 4, 4))],
            outcomes=[[RegionOutcome(iou=iou, outline=3.0, inside=(9, 9, 9), around=(5, 5, 5))] for iou in ious],
        )

    def _edits(self, request: EditRequest) -> EditReply:
        self._called("edit")
        source = decode(request.source.png)

        def changed(prompt: str, fraction: float) -> ImagePayload:
            seed = hashlib.sha256(f"{prompt}/{fraction}".encode()).digest()
            noise = np.random.default_rng(list(seed)).integers(0, 60, source.shape)
            return ImagePayload(png=encode(((source.astype(int) + noise) % 256).astype(np.uint8)))

        return EditReply(
            reconstruction=changed(request.caption, 1.0),
            images=[[changed(edit.prompt, f) for f in request.self_fractions] for edit in request.edits],
            attention=[],
            keep_mask=None,
            evaluations=EditEvaluations(inversion=request.steps, source=request.steps, edit=2 * request.steps),
            caption=request.caption,
            prompts=[edit.prompt for edit in request.edits],
        )

    def _corruptions(self, request: CorruptRequest) -> CorruptReply:
        self._called("corrupt")
        source = decode(request.source.png).astype(int)
        images = [(source + 9 * corruption.severity * len(corruption.kind)) % 256 for corruption in request.corruptions]
        return CorruptReply(images=[ImagePayload(png=encode(image.astype(np.uint8))) for image in images])

    def _compositions(self, request: ComposeRequest) -> ComposeReply:
        """Noise of each composition; larger objects do not fit, and black sources have no object."""
        self._called("compose")
        source = decode(request.source.png)
        images, refusals = [], []
        for composition in request.compositions:
            seed = hashlib.sha256(composition.model_dump_json().encode()).digest()
            noise = np.random.default_rng(list(seed)).integers(0, 60, source.shape)
            refusal = "no object" if not source.any() else "it does not fit" if composition.scale > 1 else ""
            image = ImagePayload(png=encode(((source.astype(int) + noise) % 256).astype(np.uint8)))
            images.append(None if refusal else image)
            refusals.append(refusal)
        return ComposeReply(images=images, refusals=refusals, mask=ImagePayload(png=encode(source[..., 0])))

    def _instructed_edits(self, request: InstructRequest) -> InstructReply:
        """Noise of each instruction and seed; instructions to refuse are refused."""
        self._called("instruct")
        source = decode(request.source.png)
        images: list[ImagePayload | None] = []
        for edit in request.edits:
            seed = hashlib.sha256(f"{edit.instruction}/{edit.seed}".encode()).digest()
            noise = np.random.default_rng(list(seed)).integers(0, 60, source.shape)
            image = ImagePayload(png=encode(((source.astype(int) + noise) % 256).astype(np.uint8)))
            images.append(None if "Refuse" in edit.instruction else image)
        return InstructReply(
            images=images,
            refusals=["" if image else "it will not" for image in images],
            keep_mask=request.mask,
            evaluations=3 * request.steps,
        )

    def _predictions(self, request: PredictRequest) -> PredictReply:
        self._called("predict")
        rows = []
        for image in request.images:
            weights = np.frombuffer(hashlib.sha256(request.model.encode() + image.png).digest()[:3], np.uint8) + 1.0
            rows.append((weights / weights.sum()).tolist())
        return PredictReply(classes=CLASSES, probabilities=rows)

    def _segmentations(self, request: SegmentRequest) -> SegmentReply:
        """Thirds of brightness are the classes."""
        self._called("segment")
        maps = [np.minimum(decode(image.png).mean(axis=2) // 86, 2).astype(np.uint8) for image in request.images]
        return SegmentReply(classes=ROAD_CLASSES, maps=[ImagePayload(png=encode(label_map)) for label_map in maps])

    def _detections(self, request: DetectRequest) -> DetectReply:
        """The bounding boxes of regions in which one colour is above 150; the score is how much of them is."""
        self._called("detect")
        return DetectReply(classes=DETECTED, boxes=[_regions(decode(image.png)) for image in request.images])

    def _shapes(self, request: ShapesRequest) -> ShapesReply:
        """Shapes moved where the first pixel is more than 30 brighter; without `judges`, nothing can be said."""
        self._called("shapes")
        if not self.judges:
            nothing = ShapesOutcome(classes=[], things=[])
            return ShapesReply(judged=[], unjudged=[], things=[], outcomes=[nothing] * len(request.images))
        before = int(decode(request.source.png)[0, 0, 0])
        moved = [int(decode(image.png)[0, 0, 0]) - before > 30 for image in request.images]
        return ShapesReply(
            judged=request.classes[:1],
            unjudged=request.classes[1:],
            things=[],
            outcomes=[ShapesOutcome(classes=[0.2 if changed else 0.9], things=[]) for changed in moved],
        )

    def _examinations(self, request: ExamineRequest) -> ExamineReply:
        self._called("examine")
        return ExamineReply(kind="classification", classes=CLASSES)

    def _embeddings(self, request: EmbedRequest) -> EmbedReply:
        self._called("embed")
        return EmbedReply(
            images=[[1.0, 0.0] for _ in request.images], texts=[[1.0, 0.0] for _ in request.texts], logit_scale=10.0
        )

    def _domain(self, request: DomainRequest) -> DomainReply:
        """White pictures are outside. No test counts these calls or makes them fail."""
        white = [bool((decode(image.png) == 255).all()) for image in request.images]
        return DomainReply(log_odds=[9.0 if outside else -9.0 for outside in white])

    def _structure(self, request: StructureRequest) -> StructureReply:
        self._called("structure")
        return StructureReply(agreements=[1.0] * len(request.images))


def _regions(image: Pixels) -> list[PredictedBox]:
    found = []
    for channel, label in enumerate(DETECTED):
        bright = (image[..., channel] > 150).astype(np.uint8)
        count, _, stats, _ = cv2.connectedComponentsWithStats(bright, connectivity=8)
        for x, y, width, height, area in stats[1:count].tolist():
            if area >= 9:
                score = area / (width * height)
                found.append(PredictedBox(box=(x, y, x + width, y + height), label=label, score=score))
    return found


def create_app() -> FastAPI:
    """All four services as an app, for uvicorn: a call takes the seconds that the file $SMALL_SECONDS_FILE holds."""
    return SmallServices(Path(os.environ["SMALL_SECONDS_FILE"])).app


@contextmanager
def serve(services: SmallServices) -> Iterator[str]:
    """The base URL that all four services answer at."""
    with listen(services.app) as url:
        try:
            yield url
        finally:
            services.gate.set()


@contextmanager
def open_clients(services: SmallServices, clients: Callable[[Mapping[ServiceName, str]], Clients]) -> Iterator[Clients]:
    """Clients of the services, of a class that the test chooses."""
    with serve(services) as url, closing(clients(dict.fromkeys(SERVICES, url))) as opened:
        yield opened
