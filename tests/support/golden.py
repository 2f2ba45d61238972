"""Jobs whose results must not change when the structure of the code does: a small world, steps, and what they gave.

The services answer by arithmetic on whole numbers, so that the results are the same on every processor. A picture has
its class and its weather in its first pixels; `m2` fails on buses in rain.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from contrafact.client import Client
from embedded.run import run_embedded
from shared.media.images import decode, encode
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.diffusion import EditEvaluations, EditReply, EditRequest, RenderReply, RenderRequest
from shared.schemas.effects import DoseRequest
from shared.schemas.evaluation import (
    EmbedReply,
    EmbedRequest,
    PredictReply,
    PredictRequest,
    StructureReply,
    StructureRequest,
)
from shared.schemas.jobs import JobRequest, ManifestImage
from shared.schemas.language import GenerateReply, GenerateRequest
from shared.schemas.reviews import ConfirmationRequest, ReviewRequest
from shared.schemas.service import SERVICES
from shared.schemas.suites import SuiteFilters, SuiteRequest
from tests.support.small_services import CLASSES, ROAD_CLASSES, SEGMENTER, SmallServices, serve

FOLDER = Path(__file__).parents[1] / "golden"
WEATHER = {"rain": 80, "fog": 160, "night": 240}  # the green of the first pixels
SIDE, MARK = 16, 4  # of a picture, and of the square that says what it shows
WORDS = (*CLASSES, *WEATHER, "sunny")
PASSING = re.compile(r"^(at|created_at|finished_at|reviewed_at|seconds|.*_seconds|version|url|next)$")


def picture(number: int, label: str) -> NDArray[np.uint8]:
    """A source image of a class; each number has its own noise."""
    pixels = np.random.default_rng(number).integers(0, 200, (SIDE, SIDE, 3)).astype(np.uint8)
    pixels[:MARK, :MARK] = (40 * CLASSES.index(label) + 20, 0, 0)
    return pixels


def shown(png: bytes) -> tuple[str, str]:
    """The class and the weather in a picture."""
    red, green, _ = (int(value) for value in decode(png)[0, 0])
    names = {green: name for name, green in WEATHER.items()}
    return CLASSES[min(red // 40, 2)], names.get(green, "sunny")


def chance(*parts: object) -> float:
    """A number from 0 to 1 that depends on its parts only."""
    data = b"/".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return int.from_bytes(hashlib.sha256(data).digest()[:4]) / 2**32


class GoldenServices(SmallServices):
    """Small services of the small world."""

    def _captions(self, request: CaptionRequest) -> CaptionReply:
        labels = [shown(image.png)[0] for image in request.images]
        return CaptionReply(captions=[f"A red {label} on a street. It is a sunny day." for label in labels])

    def _generate(self, request: GenerateRequest) -> GenerateReply:
        reply = super()._generate(request)
        label = next((name for name in CLASSES if f"A red {name}" in request.messages[-1].content), "car")
        text = reply.text.replace("A red car", f"A red {label}")
        return reply.model_copy(update={"text": text, "value": json.loads(text)})

    def _changed(self, source: NDArray[np.uint8], prompt: str, seed: object) -> ImagePayload:
        noise = np.random.default_rng(int(2**32 * chance(prompt, seed))).integers(0, 40, source.shape)
        pixels = ((source.astype(int) + noise) % 256).astype(np.uint8)
        pixels[:MARK, :MARK] = source[:MARK, :MARK]
        for word, green in (("rain", 80), ("fog", 160), ("night", 240)):
            if word in prompt and chance(pixels.tobytes()) > 0.1:  # every tenth change does not show
                pixels[:MARK, :MARK, 1] = green
        return ImagePayload(png=encode(pixels))

    def _renderings(self, request: RenderRequest) -> RenderReply:
        source = decode(request.source.png)
        control = ImagePayload(png=encode(source[..., 0]))
        return RenderReply(
            images=[self._changed(source, rendering.prompt, rendering.seed) for rendering in request.renderings],
            controls=dict.fromkeys({rendering.region for rendering in request.renderings}, control),
            keep_mask=None,
            evaluations=request.steps,
            protection=None if request.protection is None else self._protected(request, control),
        )

    def _edits(self, request: EditRequest) -> EditReply:
        source = decode(request.source.png)
        fractions = request.self_fractions
        return EditReply(
            reconstruction=self._changed(source, request.caption, 1.0),
            images=[[self._changed(source, edit.prompt, f) for f in fractions] for edit in request.edits],
            attention=[],
            keep_mask=None,
            evaluations=EditEvaluations(inversion=request.steps, source=request.steps, edit=2 * request.steps),
            caption=request.caption,
            prompts=[edit.prompt for edit in request.edits],
        )

    def _predictions(self, request: PredictRequest) -> PredictReply:
        rows = []
        for image in request.images:
            label, weather = shown(image.png)
            pixels = decode(image.png).tobytes()
            wrong = 0.85 if (request.model, label, weather) == ("m2", "bus", "rain") else 0.05
            place = CLASSES.index(label)
            if chance(request.model, pixels) < wrong:
                place = (place + 1) % len(CLASSES)
            most = (500 + int(400 * chance(pixels, request.model))) / 1000
            row = [(1 - most) / 2] * len(CLASSES)
            row[place] = most
            rows.append(row)
        return PredictReply(classes=CLASSES, probabilities=rows)

    def _embeddings(self, request: EmbedRequest) -> EmbedReply:
        def vector(words: Sequence[str]) -> list[float]:
            numbers = [4.0 if word in words else 1.0 for word in WORDS]
            length = sum(number**2 for number in numbers) ** 0.5
            return [number / length for number in numbers]

        texts = [vector([word for word in WORDS if word in text]) for text in request.texts]
        return EmbedReply(images=[vector(shown(image.png)) for image in request.images], texts=texts, logit_scale=10.0)

    def _structure(self, request: StructureRequest) -> StructureReply:
        lost = [chance(decode(image.png).tobytes(), "structure") < 0.05 for image in request.images]
        return StructureReply(agreements=[0.1 if loses else 0.9 for loses in lost])


def play(directory: Path) -> dict[str, Any]:
    """Take all steps on a new system; return what it says, by step."""
    said: dict[str, Any] = {}
    with (
        serve(GoldenServices()) as services,
        run_embedded(directory, service_urls=dict.fromkeys(SERVICES, services)) as system,
        closing(Client(system.base_url)) as client,
    ):
        for name, answer in _steps(client, system.base_url):
            said[name] = json.loads(json.dumps(answer))
    return said


def _steps(client: Client, base_url: str) -> Iterator[tuple[str, Any]]:
    pictures = [(number, CLASSES[number % 3]) for number in range(72)]
    images = [
        ManifestImage(digest=client.upload(encode(picture(number, label))), label=label, name=f"{label}/{number}.png")
        for number, label in pictures
    ]
    common = {"task_description": "classify the vehicle", "models": ["m1", "m2"], "seed": 3}

    methods = ["dillema", "corruptions"]
    free = _job(client, "free", JobRequest(**common, design="free", methods=methods, images=images[:12]))
    yield "free", _results(client, free)

    balanced = {"design": "balanced", "values": ["weather=rain", "weather=fog"]}
    job = _job(client, "balanced", JobRequest(**common, **balanced, methods=["dillema"], images=images))
    yield "balanced", _results(client, job)

    for number, view in enumerate(client.counterfactuals(job, {"flipped": "true", "model": "m2"})):
        verdict = "invalid" if number % 5 == 4 else "valid"
        client.review(job, view.id, ReviewRequest(verdict=verdict, edit_shown=True, arm_shown=True))
    _ended(client, client.report_anew(job).id)
    yield "reviewed", _results(client, job)
    yield "calibration", client.calibration(job).model_dump(mode="json")
    yield "findings", client.findings(job).model_dump(mode="json")

    confirmed = client.confirm(job, ConfirmationRequest())
    yield "confirmation", _results(client, _ended(client, confirmed.id))
    yield "confirmed", _results(client, job, rows=False)
    doses = client.dose(job, DoseRequest())
    yield "doses", _results(client, _ended(client, doses.id))

    adaptive = {"design": "adaptive", "budget": 120, "values": ["weather=rain", "weather=fog"]}
    yield (
        "adaptive",
        _results(
            client, _job(client, "adaptive", JobRequest(**common, **adaptive, methods=["dillema"], images=images))
        ),
    )

    suite = client.create_suite(SuiteRequest(job=job, name="rain", filters=SuiteFilters(value="rain")))
    run = client.start_run(suite.id, "street-classifier")
    for _ in client.follow(run.id):
        pass
    yield "suite", client.suite(suite.id).model_dump(mode="json", exclude={"id": True, "runs": {"__all__": {"id"}}})
    yield "run", client.run_results(suite.id, run.id, None, 5.0).model_dump(mode="json", exclude={"run", "suite"})

    yield "segmentation", _results(client, _segmentation(client, base_url))


def _segmentation(client: Client, base_url: str) -> str:
    """A job of pictures in three levels of brightness, whose masks are right but for some noise."""
    images = []
    for number in range(14):
        random = np.random.default_rng(number)
        mask = np.repeat(np.repeat(random.integers(0, 3, (SIDE // 4, SIDE // 4)), 4, 0), 4, 1).astype(np.uint8)
        pixels = 86 * mask[..., None] + random.integers(0, 86, (SIDE, SIDE, 3))
        pixels[0, 0] = (20, 0, 0)
        data = encode(mask)
        digest = hashlib.sha256(data).hexdigest()
        httpx.put(f"{base_url}/images/{digest}", params={"mask": "true"}, content=data).raise_for_status()
        images.append(ManifestImage(digest=client.upload(encode(pixels.astype(np.uint8))), mask=digest))
    request = JobRequest(
        task_description="segment the road scene",
        models=[SEGMENTER],
        methods=["dillema"],
        design="free",
        masks={"classes": [{"name": name, "index": place} for place, name in enumerate(ROAD_CLASSES)]},
        images=images,
    )
    return _job(client, "segmentation", request)


def _job(client: Client, key: str, request: JobRequest) -> str:
    """The id of a job that has ended. Its key decides its id, and so those of all rows."""
    return _ended(client, client.create(request, key).id)


def _ended(client: Client, job: str) -> str:
    for detail in client.follow(job):
        last = detail
    assert last.state == "done", last
    return job


def _results(client: Client, job: str, *, rows: bool = True) -> Mapping[str, Any]:
    """The job's figures, and its counterfactuals with their predictions."""
    page = client.results(job, {}, limit=1)
    assert page.metrics is not None
    views = [view.model_dump(mode="json") for view in client.counterfactuals(job, {})] if rows else []
    return {"metrics": page.metrics.model_dump(mode="json"), "rows": views}


def lasting(said: Any) -> Any:
    """What was said without the fields that differ with time and place."""
    if isinstance(said, dict):
        return {name: lasting(value) for name, value in said.items() if not PASSING.match(name)}
    return [lasting(value) for value in said] if isinstance(said, list) else said


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Where two answers differ, a line each."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            if name not in before or name not in now:
                yield f"{path}/{name}: {'new' if name in now else 'gone'}"
            else:
                yield from differences(before[name], now[name], f"{path}/{name}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (first, second) in enumerate(zip(before, now, strict=True)):
            yield from differences(first, second, f"{path}/{place}")
    elif before != now:
        yield f"{path}: {str(before)[:90]} before, {str(now)[:90]} now"


def read(name: str) -> Any:
    """What a step gave when it was kept."""
    return json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))


def main() -> None:
    """Keep what the steps say now: `python -m tests.support.golden`, after a change that means to change results."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        for name, answer in play(Path(directory)).items():
            text = json.dumps(lasting(answer), ensure_ascii=False, separators=(",", ":"))
            (FOLDER / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
