"""Models that answer questions, in the embedded system: a server of known behaviour, on drawn street pictures.

The truth is what the renderer drew. What the server's models see comes from the shipped classifiers; `planted` has the
weakness of one of these at night. `blind` answers the same without the picture.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image

import contrafact
from embedded.run import run_embedded
from evaluator_service.models_under_test.kinds.classification import ImageClassifier
from shared.media.images import Pixels, decode
from shared.profiles.profile import load_profile
from shared.schemas.results import JobResults, ModelResults
from shared.words.verdicts import verdict_of
from tests.support.http_jobs import finished
from tests.support.language_servers import listening
from tests.support.paths import REPOSITORY
from tinyworld.objects.demo import write_demo

PER_CLASS = {"bus": 44, "truck": 16}
VEHICLE, LETTERS, NIGHT = "Which vehicle is it?", "How many letters does its name have?", "Is it night?"
DARK = 95  # mean of a picture that is taken for one at night
MODELS = ("honest", "planted", "verbose", "refuses-a-tenth", "blind")
ENDPOINT = """
[evaluator.endpoints.{name}]
url = "{url}/v1"
kind = "vqa"
protocol = "openai"
model = "{name}"
revision = "1"
licence = "Apache-2.0"
"""
SPEC = {
    "task": "answer questions about the vehicle in a street photo",
    "models": list(MODELS),
    "questions": {},
    "design": "balanced",
    "values": ["weather=night"],
    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 1}}],
}


def server() -> FastAPI:
    app, profile = FastAPI(), load_profile("tiny")
    eyes = {
        name: ImageClassifier(profile.evaluator.models_under_test[alias], device="cpu")
        for name, alias in (("sound", "street-classifier"), ("planted", "street-classifier-night-bus"))
    }

    @cache
    def seen(name: str, png: bytes) -> str:
        row = eyes[name].run([decode(png)])[0]
        return max(PER_CLASS, key=lambda vehicle: row[eyes[name].classes.index(vehicle)])

    @app.post("/v1/chat/completions")
    def answer(body: dict[str, Any]) -> dict[str, object]:
        *pictures, text = body["messages"][0]["content"]
        question, *lines = text["text"].splitlines()
        png = base64.b64decode(pictures[0]["image_url"]["url"].partition(",")[2]) if pictures else b""
        model = body["model"]
        if model == "blind":
            vehicle = sorted(PER_CLASS)[body["seed"] % 2]
        elif not pictures:
            return completion("I don't see an image.")
        elif model == "refuses-a-tenth" and hashlib.sha256(png).digest()[1] < 26:
            return completion("I'm sorry, I can't identify what is in this image.")
        else:
            vehicle = seen("planted" if model == "planted" else "sound", png)
        if question == NIGHT:
            return completion("yes" if model != "blind" and decode(png).mean() < DARK else "no")
        if question == LETTERS:
            return completion(f"Its name has {len(vehicle)} letters." if model == "verbose" else str(len(vehicle)))
        letters = {name: letter for letter, name in (line.split(". ") for line in lines[:-1])}
        return completion(f"The picture shows a {vehicle}." if model == "verbose" else letters[vehicle])

    return app


def completion(said: str) -> dict[str, object]:
    usage = {"prompt_tokens": 300, "completion_tokens": 3, "total_tokens": 303}
    return {"choices": [{"message": {"content": said}, "finish_reason": "stop"}], "usage": usage}


def questions_about(vehicle: str) -> list[dict[str, object]]:
    return [
        {"question": VEHICLE, "options": sorted(PER_CLASS), "answer": vehicle, "key": "vehicle"},
        {"question": LETTERS, "answer": len(vehicle)},
        {"question": NIGHT, "answer": "no", "key": "time", "becomes": {"weather=night": "yes"}},
    ]


class Ran(NamedTuple):
    """A finished job with its figures by model, its first rows, its report, a page of a pair, and its Markdown."""

    measured: JobResults
    of: Mapping[str, ModelResults]
    rows: list[dict[str, Any]]
    report: str
    pair: str
    markdown: str
    plan: dict[str, Any]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    place = tmp_path_factory.mktemp("vqa")
    archive, lines = io.BytesIO(), []
    with zipfile.ZipFile(archive, "w") as target:
        for vehicle, count in PER_CLASS.items():
            write_demo(place / vehicle, [vehicle], count, without=[("time", "night")])
            for path in sorted((place / vehicle).glob("*.png")):
                target.write(path, f"{vehicle}/{path.name}")
                lines.append({"file": f"{vehicle}/{path.name}", "questions": questions_about(vehicle)})
        target.writestr("manifest.jsonl", "\n".join(map(json.dumps, lines)))
    with listening(server()) as url:
        profile = (REPOSITORY / "shared/profiles/tiny.toml").read_text()
        profile = profile.replace('"tinyworld/', f'"{REPOSITORY}/tinyworld/')
        profile += "".join(ENDPOINT.format(name=name, url=url) for name in MODELS)
        (place / "profile.toml").write_text(profile)
        with (
            run_embedded(place / "system", str(place / "profile.toml")) as system,
            httpx.Client(base_url=system.base_url, timeout=300) as client,
        ):
            files = {
                "images": ("images.zip", archive.getvalue(), "application/zip"),
                "spec": ("", json.dumps(SPEC).encode(), "application/json"),
            }
            plan = client.post("/jobs?dry_run=true", files=files)
            made = client.post("/jobs", files=files)
            assert made.status_code == 202, made.text
            job = f"/jobs/{made.json()['id']}"
            finished(client, job, 3_600)
            page = client.get(f"{job}/results", params={"limit": 20}).json()
            measured = JobResults.model_validate(page["metrics"])
            first = page["counterfactuals"][0]["id"]
            gallery = client.get(f"{job}/gallery")
            assert gallery.status_code == 200, gallery.text
            yield Ran(
                measured,
                {of.model: of for of in measured.results},
                page["counterfactuals"],
                client.get(f"{job}/report").text,
                client.get(f"{job}/pairs/{first}").text,
                client.get(f"{job}/report", params={"format": "md"}).text,
                plan.json(),
            )


@pytest.mark.slow
def test_each_model_is_named_for_what_it_is(ran: Ran) -> None:
    measured, of = ran.measured, ran.of
    for name in ("honest", "verbose", "refuses-a-tenth"):
        assert not said(of[name]).startswith("Not"), said(of[name])
        assert not verdict_of(measured, of[name]).weaknesses, name
    weaknesses = verdict_of(measured, of["planted"]).weaknesses
    changes = {(weakness.cell.direction, weakness.cell.value) for weakness in weaknesses}
    assert ("to", "night") in changes <= {("to", "night"), ("from", "day")}  # the same pairs, from both sides
    assert {weakness.cell.label for weakness in weaknesses} <= {"", "all classes", "number", "vehicle"}
    blind = of["blind"].originals
    assert blind is not None
    assert blind.blind is not None
    assert (blind.standing, blind.blind.looks, blind.blind.same.value) == ("unsound", False, 1.0)
    assert not of["blind"].findings
    assert "Without the pictures it answered none of the questions" in said(of["honest"])


@pytest.mark.slow
def test_refusals_are_neither_right_nor_wrong(ran: Ran) -> None:
    honest, tenth = (ran.of[name] for name in ("honest", "refuses-a-tenth"))
    assert "which do not count" in said(tenth)
    assert 0 < tenth.counterfactuals < honest.counterfactuals <= tenth.counterfactuals + tenth.left_out
    for figures in (honest.answers, tenth.answers):
        assert figures is not None
        _, letters, time, vehicle = figures.all_originals
        assert [letters.label, time.label, vehicle.label] == ["number", "time", "vehicle"]
        assert letters.right.value == vehicle.right.value
    assert honest.answers is not None
    assert tenth.answers is not None
    refused = tenth.answers.all_originals[0]
    assert refused.unanswered["refused"] + refused.right.n == 3 * sum(PER_CLASS.values())
    assert honest.answers.all_originals[0].unanswered == {}
    assert honest.usage.questions > 0


@pytest.mark.slow
def test_looking_at_the_picture_and_not_being_fooled_are_two_figures(ran: Ran) -> None:
    """An edit to night must change whether it is night, and nothing else."""
    honest, planted, blind = (ran.of[name].answers for name in ("honest", "planted", "blind"))
    assert honest is not None
    assert planted is not None
    assert blind is not None
    assert honest.follows is not None
    assert blind.follows is not None
    assert blind.stays is not None
    assert (blind.follows.count, blind.stays.count) == (0, blind.stays.n)
    assert (honest.follows.value or 0) > 0
    assert (honest.steady.value or 0) > (planted.steady.value or 0)
    assert "Looks at the picture" in ran.report


@pytest.mark.slow
def test_questions_and_answers_are_shown_before_and_after(ran: Ran) -> None:
    answers = ran.rows[0]["predictions"][0]["original"]["answers"]
    assert [answer["question"] for answer in answers] == [VEHICLE, LETTERS, NIGHT]
    for text in (ran.report, ran.pair):
        assert VEHICLE in text
    assert "Right answers" in ran.report
    assert "without the picture" in ran.pair
    assert "planted" in ran.markdown
    assert ran.plan["labelled"] == sum(PER_CLASS.values())


def said(of: ModelResults) -> str:
    assert of.originals is not None
    return of.originals.sentence


def brightness(image: Pixels) -> str:
    """Whether a picture is bright, as a function of the caller may say it."""
    return "yes" if image.mean() > 90 else "no"


@pytest.mark.slow
def test_a_function_of_image_and_question_is_tested_in_process(tmp_path: Path) -> None:
    write_demo(tmp_path / "pictures", ["bus"], 14)
    paths = sorted((tmp_path / "pictures").rglob("*.png"))
    pairs = [(path, ("Is it bright?", brightness(np.asarray(Image.open(path))))) for path in paths]
    outcome = contrafact.test(
        lambda image, question: f"{brightness(image)}, it seems",
        pairs,
        task="answer questions about a street photo",
        kind="vqa",
        methods=["corruptions"],
        directory=tmp_path / "job",
    )
    figures = outcome.metrics.results[0].answers
    assert figures is not None
    assert figures.all_originals[0].right.n == 14
