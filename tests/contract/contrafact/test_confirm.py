"""`contrafact confirm`: the weaknesses of a job are tested again by another editor, and the findings say how it went.

Both jobs run from the command line to the report. The services answer by arithmetic: rain and fog make a picture dim or
dark, which the scorer sees, and the model under test loses the car in dark pictures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedded.run import run_embedded
from shared.media.images import decode, encode
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import EditReply, EditRequest, RenderReply, RenderRequest
from shared.schemas.effects import CellEffect
from shared.schemas.evaluation import EmbedReply, EmbedRequest, PredictReply, PredictRequest
from shared.schemas.results import JobResults
from shared.schemas.service import SERVICES
from tests.support.command_line import contrafact
from tests.support.small_services import CLASSES, SmallServices, serve

IMAGES = 24
DIM, DARK = 100, 60  # mean grey levels; sources are brighter
LENIENT = ["--set", 'thresholds={"structure": {"default": 0}}']


class DarkeningServices(SmallServices):
    """Renderings are dark where the prompt says rain or fog; edits of an inverted source are, or only dim."""

    def __init__(self, inverted: int) -> None:
        super().__init__()
        self.inverted = inverted  # what grey levels of edits are divided by

    def _renderings(self, request: RenderRequest) -> RenderReply:
        reply = super()._renderings(request)
        images = [
            _divided(image, 8) if _bad_weather(rendering.prompt) else image
            for image, rendering in zip(reply.images, request.renderings, strict=True)
        ]
        return reply.model_copy(update={"images": images})

    def _edits(self, request: EditRequest) -> EditReply:
        reply = super()._edits(request)
        images = [
            [_divided(image, self.inverted) if _bad_weather(edit.prompt) else image for image in of_edit]
            for of_edit, edit in zip(reply.images, request.edits, strict=True)
        ]
        return reply.model_copy(update={"images": images})

    def _predictions(self, request: PredictRequest) -> PredictReply:
        rows = [[0.1, 0.8, 0.1] if _grey(image) < DARK else [0.8, 0.1, 0.1] for image in request.images]
        return PredictReply(classes=CLASSES, probabilities=rows)

    def _embeddings(self, request: EmbedRequest) -> EmbedReply:
        return EmbedReply(
            images=[_vector(_grey(image) < DIM, car=True) for image in request.images],
            texts=[_vector(_bad_weather(text), car="car" in text) for text in request.texts],
            logit_scale=10.0,
        )


def _bad_weather(prompt: str) -> bool:
    return "rainy" in prompt or "foggy" in prompt


def _vector(bad_weather: bool, car: bool) -> list[float]:
    """A unit vector: fair weather, bad weather, a car, another thing."""
    return [0.6 * (not bad_weather), 0.6 * bad_weather, 0.8 * car, 0.8 * (not car)]


def _divided(image: ImagePayload | None, by: int) -> ImagePayload:
    assert image is not None
    return ImagePayload(png=encode((decode(image.png) // by).astype(np.uint8)))


def _grey(image: ImagePayload) -> float:
    return float(decode(image.png).mean())


@pytest.fixture
def testset(tmp_path: Path) -> Path:
    folder = tmp_path / "testset" / "car"
    folder.mkdir(parents=True)
    for index in range(IMAGES):
        noise = np.random.default_rng(index).integers(0, 20, (12, 12, 3))
        (folder / f"{index}.png").write_bytes(encode((140 + noise).astype(np.uint8)))
    return folder.parent


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A system whose second editor divides grey levels by so much in bad weather (parameter)."""
    small = DarkeningServices(request.param)
    with (
        serve(small) as services,
        run_embedded(tmp_path / "data", service_urls=dict.fromkeys(SERVICES, services)) as system,
    ):
        yield system.base_url


def weaknesses(url: str, job: str) -> list[CellEffect]:
    results = JobResults.model_validate_json(contrafact(url, "findings", job, "--json")[0])
    return [effect for figures in results.results for effect in figures.findings if effect.standing == "weakness"]


def submit(url: str, testset: Path) -> str:
    task = [
        "--task",
        "classify the vehicle",
        "--model",
        "m1",
        "--set",
        "counterfactuals_per_image=2",
        "--design",
        "free",
    ]
    return contrafact(url, "submit", testset, *task, *LENIENT, "--wait")[0].splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize(("url", "verdict"), [(8, "confirmed"), (2, "not confirmed")], indirect=["url"])
def test_a_weakness_is_confirmed_if_the_second_editor_shows_it_too(url: str, verdict: str, testset: Path) -> None:
    job = submit(url, testset)
    values = {effect.cell.value for effect in weaknesses(url, job) if effect.cell.direction == "to"}
    assert values == {"rain", "fog"}
    stdout, _ = contrafact(url, "confirm", job, "--wait")
    confirming, *lines = stdout.splitlines()
    assert "`car` fails" in "\n".join(lines)
    detail = json.loads(contrafact(url, "status", confirming, "--json")[0])
    assert (detail["state"], detail["methods"][0]["name"], detail["images"]) == ("done", "shifts", IMAGES)
    for effect in weaknesses(url, job):
        if effect.cell.direction == "to":
            assert effect.confirmation is not None
            assert (effect.confirmation.verdict, effect.confirmation.job) == (verdict, confirming)
    assert contrafact(url, "confirm", job)[0].strip() == confirming, "started once"


@pytest.mark.slow
@pytest.mark.parametrize("url", [8], indirect=True)
def test_what_cannot_be_confirmed_ends_with_the_reason(url: str, testset: Path) -> None:
    job = submit(url, testset)
    assert "unrelated editor" in contrafact(url, "confirm", job, "--with", "dillema", code=3)[1]
    contrafact(url, "confirm", job, "--with", "paint", code=2)
    contrafact(url, "confirm", "nothing", code=3)
