"""Vision-language models under test in the embedded system: servers of known behaviour, on drawn street pictures.

What they see comes from the shipped classifiers; how they answer is that of language models. `blind` and `half-blind`
have the same answer with and without the picture, the latter for about half of the pictures.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from embedded.run import run_embedded
from evaluator_service.models_under_test.kinds.classification import ImageClassifier
from shared.media.images import decode
from shared.profiles.profile import load_profile
from shared.schemas.results import JobResults, ModelResults
from shared.words.verdicts import verdict_of
from tests.support.http_jobs import finished
from tests.support.language_servers import listening
from tests.support.paths import REPOSITORY
from tinyworld.objects.demo import write_demo

PER_CLASS = {"bus": 44, "car": 16}
MODELS = ("honest", "planted", "verbose", "first", "refuses-a-tenth", "refuses-all", "blind", "half-blind")
ENDPOINT = """
[evaluator.endpoints.{name}]
url = "{url}/v1"
protocol = "openai"
model = "{name}"
classes = ["bus", "car", "truck"]
revision = "1"
licence = "Apache-2.0"
"""


def server() -> FastAPI:
    app, profile = FastAPI(), load_profile("tiny")
    sound, planted = (
        ImageClassifier(profile.evaluator.models_under_test[alias], device="cpu")
        for alias in ("street-classifier", "street-classifier-night-bus")
    )

    @app.post("/v1/chat/completions")
    def answer(body: dict[str, Any]) -> dict[str, object]:
        *pictures, text = body["messages"][0]["content"]
        letters = {name: letter for letter, name in (line.split(". ") for line in text["text"].splitlines()[1:-1])}
        guess = min(letters, key=lambda name: hashlib.sha256(f"{name} {body['seed']}".encode()).digest())
        png = base64.b64decode(pictures[0]["image_url"]["url"].partition(",")[2]) if pictures else b""
        chance = hashlib.sha256(png).digest()[0]
        if body["model"] == "blind" or (body["model"] == "half-blind" and (not pictures or chance < 128)):
            said = f"{letters[guess]}."
        elif not pictures:
            said = (
                "Please provide an image." if body["model"] == "honest" else reply(body["model"], guess, letters, 255)
            )
        else:
            model = planted if body["model"] == "planted" else sound
            row = model.run([decode(png)])[0]
            seen = max(letters, key=lambda name: row[model.classes.index(name)])
            said = reply(body["model"], seen, letters, chance)
        return {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}

    return app


def reply(model: str, seen: str, letters: Mapping[str, str], chance: int) -> str:
    if model == "first":
        return "A"
    if model == "refuses-all" or (model == "refuses-a-tenth" and chance < 26):
        return "I'm sorry, I can't identify what is in this image."
    return f"The picture shows a {seen} on a street." if model == "verbose" else f"{letters[seen]}."


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[JobResults, Mapping[str, ModelResults], str]]:
    place = tmp_path_factory.mktemp("question")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name, count in PER_CLASS.items():
            write_demo(place / name, [name], count)
            for path in sorted((place / name).glob("*.png")):
                target.write(path, f"{name}/{path.name}")
    with listening(server()) as url:
        profile = (REPOSITORY / "shared/profiles/tiny.toml").read_text()
        profile = profile.replace('"tinyworld/', f'"{REPOSITORY}/tinyworld/')
        profile += "".join(ENDPOINT.format(name=name, url=url) for name in MODELS)
        (place / "profile.toml").write_text(profile)
        with (
            run_embedded(place / "system", str(place / "profile.toml")) as system,
            httpx.Client(base_url=system.base_url, timeout=300) as client,
        ):
            spec = {
                "task": "classify the vehicle in a street photo",
                "models": list(MODELS),
                "design": "balanced",
                "values": ["weather=night"],
                "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 1}}],
            }
            files = {
                "images": ("images.zip", archive.getvalue(), "application/zip"),
                "spec": ("", json.dumps(spec).encode(), "application/json"),
            }
            made = client.post("/jobs", files=files)
            assert made.status_code == 202, made.text
            job = f"/jobs/{made.json()['id']}"
            finished(client, job)
            measured = JobResults.model_validate(client.get(f"{job}/results").json()["metrics"])
            yield measured, {of.model: of for of in measured.results}, client.get(f"{job}/report").text


@pytest.mark.slow
def test_each_model_is_named_for_what_it_is(
    results: tuple[JobResults, Mapping[str, ModelResults], str],
) -> None:
    measured, of, report = results
    for name in ("honest", "verbose", "refuses-a-tenth"):
        assert not said(of[name]).startswith("Not"), said(of[name])
        assert not verdict_of(measured, of[name]).weaknesses, name
    (weakness,) = verdict_of(measured, of["planted"]).weaknesses
    assert (weakness.cell.label, weakness.cell.value) == ("bus", "night")
    first, silent, tenth = (said(of[name]) for name in ("first", "refuses-all", "refuses-a-tenth"))
    assert "whatever stood there" in first
    assert "answered none of the 60 originals (60 refused)" in silent
    assert "which do not count" in tenth
    assert not of["first"].findings
    assert not of["refuses-all"].findings
    answered, unanswered = of["refuses-a-tenth"].counterfactuals, of["refuses-a-tenth"].unanswered
    assert answered < of["honest"].counterfactuals <= answered + of["refuses-a-tenth"].left_out
    assert 0 < of["refuses-a-tenth"].left_out <= sum(unanswered.values())
    assert "the model gave no answer" in report
    # Without its picture each original has the same options in the same order.
    assert "Without the pictures it answered none of the questions" in said(of["honest"])
    assert "a part of them only" in said(of["half-blind"])
    assert not of["blind"].findings
    for name in ("blind", "first"):
        check = of[name].originals
        assert check is not None, name
        assert check.blind is not None, name
        assert (check.standing, check.blind.looks, check.blind.same.value) == ("unsound", False, 1.0), name
    planted = of["planted"].originals
    assert planted is not None
    assert planted.blind is not None
    assert (planted.blind.looks, planted.blind.right.n) == (True, 60)
    assert planted.blind.chance == pytest.approx(1 / 3)
    assert "without seeing them, by chance 33%" in said(of["planted"])
    assert "without seeing them" in report


def said(of: ModelResults) -> str:
    assert of.originals is not None
    return of.originals.sentence
