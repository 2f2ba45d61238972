"""The calls of a trial: each is a step with its seconds, the service's memory, what came out, and what is wrong.

What a reply of a service says, in one line, what is wrong with it, and its pictures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from gateway.methods import JobMethod
from gateway.model_services.clients import ModelServices
from gateway.results.provenance import CREATOR
from shared.media.images import decode
from shared.media.xmp import with_xmp, xmp_packet
from shared.problems import NotReady, Problem
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.boxes import DetectReply
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.diffusion import ComposeReply, CorruptReply, EditReply, InstructReply, RenderReply
from shared.schemas.evaluation import (
    EmbedReply,
    EmbedTextsReply,
    JudgeReply,
    PredictReply,
    SegmentReply,
    ShapesReply,
    StructureReply,
)
from shared.schemas.language import GenerateReply
from shared.schemas.questions import AskReply
from shared.schemas.service import ServiceName
from shared.service.endpoints import METRICS, Endpoint, Reply, Request, Services
from shared.service.memory_metrics import GPU_MEMORY, PROCESS_MEMORY

FLAT = 2.0  # grey values (0 … 255): a picture whose standard deviation is below shows nothing
FEW_WORDS = 3
LARGEST_CLASSES = 4
HALF_PRECISION = (
    'set `dtype` of [diffusion.base] to "bfloat16", or "float32", since half precision overflows in some autoencoders'
)
Pictures = Sequence[ImagePayload | None]
PROBE_SECONDS = 10.0


def verdict_line(fine: bool, sentence: str) -> str:
    """A line of `contrafact doctor`."""
    return f"{'ok   ' if fine else 'WRONG'}  {sentence}"


@dataclass(frozen=True, slots=True)
class Step:
    """One call, one edit's checks, or one method's result. `memory`: the service's peak in bytes, if it says so.

    `pictures` are file names in the trial's folder. `fault` says what is wrong and what to change; "" if nothing is.
    """

    name: str
    outcome: str
    seconds: float | None = None
    memory: int | None = None
    pictures: tuple[str, ...] = ()
    fault: str = ""

    @property
    def sentence(self) -> str:
        """The step in one line, as the command prints it."""
        numbers = [] if self.seconds is None else [f"{self.seconds:.1f} s"]
        numbers += [] if self.memory is None else [f"{self.memory / 1e9:.1f} GB"]
        spent = f" ({', '.join(numbers)})" if numbers else ""
        fault = f": {self.fault}" if self.fault else ""
        return verdict_line(not self.fault, f"{self.name}{spent}: {self.outcome}{fault}")


@dataclass(frozen=True, slots=True)
class TrialSource:
    """The source image of a trial, its digest, and the sentence that replaces its caption if the captioner fails."""

    image: ImagePayload
    digest: str
    substitute: str


class WatchedServices(Services):
    """The services, noting for each call its seconds, memory, outcome and pictures. `title` names the caller.

    A call that fails is a step too. If the captioner fails on the source image, its caption is the substitute from
    then on, so that the later services are tried. A service that could not be reached is not called again.
    """

    def __init__(
        self, services: ModelServices, urls: Mapping[ServiceName, str], folder: Path, source: TrialSource
    ) -> None:
        self._services, self._urls, self._folder, self._source = services, urls, folder, source
        self._steps: list[Step] = []
        self._calls = 0
        self._absent: dict[ServiceName, NotReady] = {}
        self._files: dict[bytes, str] = {}
        self._captioner_fails = False
        self.title = ""
        self.method: JobMethod | None = None

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """Call the service and note the step."""
        if self._captioner_fails and (reply := self._substitute(endpoint, request)):
            return reply
        if endpoint.service in self._absent:
            raise self._absent[endpoint.service]
        self._calls += 1
        name = f"{self.title}: {endpoint.service} {endpoint.path}"
        began = time.monotonic()
        try:
            reply = self._services.call(endpoint, request)
        except Problem as problem:
            substitute = self._substitute(endpoint, request)
            outcome = "failed" if substitute is None else f"failed, so the caption is “{self._source.substitute}”"
            self._note_failure(Step(name, outcome, time.monotonic() - began, fault=problem.detail), endpoint, problem)
            if substitute is None:
                raise
            self._captioner_fails = True
            return substitute
        seconds = time.monotonic() - began
        outcome, fault = describe(reply)
        memory = used_memory(self._urls.get(endpoint.service, ""))
        self._steps.append(Step(name, outcome, seconds, memory, self._save(reply), fault))
        return reply

    def take_steps(self) -> Iterator[Step]:
        """The steps since the last call of this function."""
        steps, self._steps = self._steps, []
        yield from steps

    def picture_of(self, image: ImagePayload) -> tuple[str, ...]:
        """The file of a picture that a service has made."""
        return (self._files[image.png],) if image.png in self._files else ()

    def _note_failure(self, step: Step, endpoint: Endpoint[Request, Reply], problem: Problem) -> None:
        self._steps.append(replace(step, memory=used_memory(self._urls.get(endpoint.service, ""))))
        if isinstance(problem, NotReady):
            self._absent[endpoint.service] = problem

    def _substitute(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply | None:
        """The substitute as the captioner's reply on the source image; None for any other request."""
        if not isinstance(request, CaptionRequest) or [image.png for image in request.images] != [
            self._source.image.png
        ]:
            return None
        captions = [self._source.substitute] * request.captions_per_image
        return endpoint.reply.model_validate(CaptionReply(captions=captions).model_dump())

    def _save(self, reply: Contract) -> tuple[str, ...]:
        """Save a reply's pictures, generated ones with their provenance; their file names."""
        names = []
        generated = generated_pictures(reply)
        for number, payload in enumerate([*generated, *control_pictures(reply)]):
            names.append(f"{self._calls:03d}-{number}.png")
            png = self._marked(payload.png) if number < len(generated) else payload.png
            (self._folder / names[-1]).write_bytes(png)
            self._files.setdefault(payload.png, names[-1])
        return tuple(names)

    def _marked(self, png: bytes) -> bytes:
        """The picture with its provenance as XMP. There is no job, and so no counterfactual and no arm, to name."""
        assert self.method is not None, "only methods make pictures"
        properties = {"Method": self.method.name, "SourceDigest": self._source.digest}
        return with_xmp(png, xmp_packet(self.method.digital_source, CREATOR, properties))


def used_memory(url: str) -> int | None:
    """The most bytes that torch reserved on the GPUs of the service at `url`, or else those of its process."""
    try:
        text = httpx.get(f"{url}{METRICS}", timeout=PROBE_SECONDS, trust_env=False).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    by_name = {
        name: sum(sample.value for sample in samples if sample.name == name) for name in (GPU_MEMORY, PROCESS_MEMORY)
    }
    return int(by_name[GPU_MEMORY] or by_name[PROCESS_MEMORY]) or None


def describe(reply: Contract) -> tuple[str, str]:
    """What a reply says, in one line, and what is wrong with it ("": nothing)."""
    match reply:
        case CaptionReply(captions=captions):
            is_short = any(len(caption.split()) < FEW_WORDS for caption in captions)
            fault = "a caption of fewer than three words leaves nothing to change: try another captioner"
            return " | ".join(captions), fault if is_short else ""
        case GenerateReply(text=text, attempts=attempts):
            fault = "" if attempts == 1 else "the first reply did not fit its schema, so the model was asked twice"
            return " ".join(text.split())[:300], fault
        case PredictReply(classes=classes, probabilities=[row, *_]):
            if isinstance(row, str):
                return f"no answer ({row})", "a model that does not answer cannot be tested: look at its replies"
            best = max(range(len(row)), key=row.__getitem__)
            return f"{classes[best]} ({row[best]:.0%})", "" if math.isfinite(row[best]) else "it is NaN or infinity"
        case SegmentReply(classes=classes, maps=[first, *_]):
            values, counts = np.unique(decode(first.png, "L"), return_counts=True)
            order = np.argsort(-counts)[:LARGEST_CLASSES]
            return ", ".join(f"{classes[values[at]]} {counts[at] / counts.sum():.0%}" for at in order), ""
        case DetectReply(boxes=[first, *_]):
            best_boxes = sorted(first, key=lambda box: -box.score)[:LARGEST_CLASSES]
            found = ", ".join(f"{box.label} ({box.score:.0%})" for box in best_boxes)
            return f"{len(first)} boxes: {found}" if first else "no box", ""
        case AskReply(answers=[[first, *_], *_]):
            fault = "a model that does not answer cannot be tested: look at its replies"
            return (first.answer, "") if first.answer else (f"no answer ({first.unanswered})", fault)
        case RenderReply() | EditReply() | InstructReply() | ComposeReply() | CorruptReply():
            return _describe_pictures(reply)
        case _:
            return _describe_check(reply), ""


def _describe_pictures(reply: RenderReply | EditReply | InstructReply | ComposeReply | CorruptReply) -> tuple[str, str]:
    match reply:
        case RenderReply(images=images):
            return _images("rendered", images, reply.evaluations)
        case EditReply(images=rows):
            return _images("edited", [image for row in rows for image in row], reply.evaluations.edit)
        case InstructReply(images=images, refusals=refusals):
            outcome, fault = _images("edited", _not_refused(images, refusals), reply.evaluations)
        case ComposeReply(images=images, refusals=refusals):
            outcome, fault = _images("composed", _not_refused(images, refusals))
        case CorruptReply(images=images):
            return _images("corrupted", images)
    reasons = ", ".join(dict.fromkeys(filter(None, refusals)))
    if all(refusals):
        return "every image is refused", reasons
    return (f"{outcome}; {sum(map(bool, refusals))} refused: {reasons}" if reasons else outcome), fault


def _not_refused(images: Pictures, refusals: Sequence[str]) -> Pictures:
    return [image for image, refusal in zip(images, refusals, strict=True) if not refusal]


def _images(word: str, images: Pictures, evaluations: int = 0) -> tuple[str, str]:
    shown = [image for image in images if image is not None]
    flat = sum(decode(image.png).std() < FLAT for image in shown)
    faults = []
    if len(shown) < len(images):
        faults.append(f"{len(images) - len(shown)} of {len(images)} images hold NaN or infinity: {HALF_PRECISION}")
    if flat:
        faults.append(f"{flat} of {len(images)} images are one flat colour: {HALF_PRECISION}")
    cost = f", {evaluations} network evaluations each" if evaluations else ""
    return f"{len(shown)} {word}{cost}", "; ".join(faults)


def _describe_check(reply: Contract) -> str:
    """The figures of a check; the steps of the edits have its scores beside their thresholds."""
    match reply:
        case StructureReply(agreements=agreements):
            return f"edges kept: {_figures(agreements)}"
        case JudgeReply(yes=rows):
            said = [value if isinstance(value, str) else _figures([value]) for row in rows for value in row]
            return f"probability of yes: {', '.join(said)}"
        case ShapesReply(judged=judged, outcomes=outcomes):
            overlaps = _figures([value for outcome in outcomes for value in outcome.classes])
            return f"detected in the source: {', '.join(judged) or 'no class'}; kept: {overlaps or 'none'}"
        case EmbedReply(images=images, texts=texts):
            return f"{len(images)} images and {len(texts)} texts embedded"
        case EmbedTextsReply(texts=texts):
            return f"{len(texts)} texts embedded"
        case _:
            return "answered"


def _figures(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def generated_pictures(reply: Contract) -> list[ImagePayload]:
    """The pictures that a reply's editor made."""
    match reply:
        case EditReply(images=rows):
            return [reply.reconstruction, *(image for row in rows for image in row if image is not None)]
        case RenderReply() | InstructReply() | ComposeReply() | CorruptReply():
            return [image for image in reply.images if image is not None]
        case _:
            return []


def control_pictures(reply: Contract) -> list[ImagePayload]:
    """The control images and the mask of the object that a reply's editor used."""
    match reply:
        case RenderReply():
            masks = [reply.keep_mask]
            return [*reply.controls.values(), *(mask for mask in masks if mask is not None)]
        case EditReply() | InstructReply():
            return [] if reply.keep_mask is None else [reply.keep_mask]
        case ComposeReply():
            return [reply.mask]
        case _:
            return []
