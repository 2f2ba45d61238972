"""The calls of a trial: each is a step with its seconds, the service's memory, what came out, and what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.methods import JobMethod
from gateway.model_services.clients import ModelServices
from gateway.results.provenance import CREATOR
from gateway.trial.descriptions import control_pictures, describe, generated_pictures
from shared.endpoints import METRICS, Endpoint, Reply, Request, Services
from shared.memory_metrics import GPU_MEMORY, PROCESS_MEMORY
from shared.problems import NotReady, Problem
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.service import ServiceName
from shared.xmp import with_xmp, xmp_packet

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
