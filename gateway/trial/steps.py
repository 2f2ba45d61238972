"""The calls of a trial: each is a step with its seconds, the service's memory, what came out, and what is wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from gateway.model_services.clients import ModelServices
from shared.endpoints import METRICS, Endpoint, Reply, Request, Services
from shared.images import decode
from shared.memory_metrics import GPU_MEMORY, PROCESS_MEMORY
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.caption import CaptionReply
from shared.schemas.diffusion import EditReply, RenderReply
from shared.schemas.evaluation import PredictReply, SegmentReply
from shared.schemas.language import GenerateReply
from shared.schemas.service import ServiceName

FLAT = 2.0  # grey values (0 … 255): a picture whose standard deviation is below shows nothing
FEW_WORDS = 3
PROBE_SECONDS = 10.0
LARGEST_CLASSES = 4
HALF_PRECISION = (
    'set `dtype` of [diffusion.base] to "bfloat16", or "float32", since half precision overflows in some autoencoders'
)


def verdict_line(fine: bool, sentence: str) -> str:
    """A line of `contrafact doctor`."""
    return f"{'ok   ' if fine else 'WRONG'}  {sentence}"


@dataclass(frozen=True, slots=True)
class Step:
    """One call, or one method's result. `memory`: the most bytes that its service has used, if the service says so.

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


class WatchedServices(Services):
    """The services, noting for each call its seconds, memory, outcome and pictures. `title` names the caller."""

    def __init__(self, services: ModelServices, urls: Mapping[ServiceName, str], folder: Path) -> None:
        self._services, self._urls, self._folder = services, urls, folder
        self._steps: list[Step] = []
        self._calls = 0
        self.title = ""

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """Call the service and note the step."""
        self._calls += 1
        began = time.monotonic()
        reply = self._services.call(endpoint, request)
        seconds = time.monotonic() - began
        outcome, fault = describe(reply)
        pictures = self._save(reply)
        name = f"{self.title}: {endpoint.service} {endpoint.path}"
        memory = used_memory(self._urls.get(endpoint.service, ""))
        self._steps.append(Step(name, outcome, seconds, memory, pictures, fault))
        return reply

    def take_steps(self) -> Iterator[Step]:
        """The steps since the last call of this function."""
        steps, self._steps = self._steps, []
        yield from steps

    def _save(self, reply: Contract) -> tuple[str, ...]:
        """Save a reply's pictures; their file names."""
        names = []
        for number, payload in enumerate([*generated_pictures(reply), *control_pictures(reply)]):
            names.append(f"{self._calls:03d}-{number}.png")
            (self._folder / names[-1]).write_bytes(payload.png)
        return tuple(names)


def generated_pictures(reply: Contract) -> list[ImagePayload]:
    """The pictures that a reply's editor made."""
    if isinstance(reply, RenderReply):
        return [image for image in reply.images if image is not None]
    if isinstance(reply, EditReply):
        return [reply.reconstruction, *(image for images in reply.images for image in images if image is not None)]
    return []


def control_pictures(reply: Contract) -> list[ImagePayload]:
    """The control images and the mask of the object that a reply's editor used."""
    controls = list(reply.controls.values()) if isinstance(reply, RenderReply) else []
    mask = reply.keep_mask if isinstance(reply, RenderReply | EditReply) else None
    return controls if mask is None else [*controls, mask]


def describe(reply: Contract) -> tuple[str, str]:
    """What a reply says, in one line, and what is wrong with it."""
    match reply:
        case CaptionReply(captions=captions):
            is_short = any(len(caption.split()) < FEW_WORDS for caption in captions)
            fault = (
                "a caption of fewer than three words leaves nothing to change: try another captioner"
                if is_short
                else ""
            )
            return " | ".join(captions), fault
        case GenerateReply(text=text, attempts=attempts):
            fault = "" if attempts == 1 else "the first reply did not fit its schema, so the model was asked twice"
            return " ".join(text.split())[:300], fault
        case RenderReply(images=images):
            return _images("rendered", images, reply.evaluations)
        case EditReply(images=rows):
            return _images("edited", [image for row in rows for image in row], reply.evaluations.edit)
        case PredictReply(classes=classes, probabilities=[row, *_]):
            best = max(range(len(row)), key=row.__getitem__)
            fault = "" if math.isfinite(row[best]) else "its output is NaN or infinity"
            return f"{classes[best]} ({row[best]:.0%})", fault
        case SegmentReply(classes=classes, maps=[first, *_]):
            values, counts = np.unique(decode(first.png, "L"), return_counts=True)
            order = np.argsort(-counts)[:LARGEST_CLASSES]
            parts = [f"{classes[values[index]]} {counts[index] / counts.sum():.0%}" for index in order]
            return ", ".join(parts), ""
        case _:
            return "answered", ""


def _images(word: str, images: Sequence[ImagePayload | None], evaluations: int) -> tuple[str, str]:
    shown = [image for image in images if image is not None]
    flat = sum(decode(image.png).std() < FLAT for image in shown)
    faults = []
    if len(shown) < len(images):
        faults.append(f"{len(images) - len(shown)} of {len(images)} images hold NaN or infinity: {HALF_PRECISION}")
    if flat:
        faults.append(f"{flat} of {len(images)} images are one flat colour: {HALF_PRECISION}")
    return f"{len(shown)} {word}, {evaluations} network evaluations each", "; ".join(faults)


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
