"""The judge behind the real evaluator and a server on a port: its answers become scores, also beside another picture, a
refusal stands for itself, tokens are counted, and its key comes from the environment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI, Request

from embedded.serving import ListeningPort
from evaluator_service.app import create_app
from gateway.model_services.clients import ModelServices
from shared.media.images import encode
from shared.problems import Problem
from shared.profiles.judge_audit import PROMPT
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import JudgeRequest, TokenUsage
from tests.support.language_servers import listening
from tests.support.service_settings import settings
from tests.support.small_evaluator import write_scorer
from tests.support.small_profile import write_profile

IMAGE = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))


class VisionServer:
    """Says yes with 90 % to questions on buses, and no with 80 % to others; of a pair it takes the first. It does
    not speak of boats. It notes authorisation, questions and how many pictures each has."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.questions: list[str] = []
        self.pictures: list[int] = []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.answer)

    async def answer(self, request: Request) -> dict[str, object]:
        self.keys.add(request.headers.get("authorization", ""))
        *images, text = (await request.json())["messages"][0]["content"]
        assert all(image["image_url"]["url"].startswith("data:image/png;base64,") for image in images)
        self.questions.append(text["text"])
        self.pictures.append(len(images))
        if "first or second" in text["text"] or "boat" in text["text"]:
            said = "I'm sorry, I can't help with that." if "boat" in text["text"] else "first"
            choice = {"message": {"content": said}, "finish_reason": "stop"}
            return {"choices": [choice], "usage": {"prompt_tokens": 50, "completion_tokens": 2, "total_tokens": 52}}
        yes = 0.9 if "bus" in text["text"] else 0.2
        top = [{"token": word, "logprob": math.log(p), "bytes": None} for word, p in (("yes", yes), ("no", 1 - yes))]
        content = [{"token": "yes", "logprob": math.log(yes), "bytes": None, "top_logprobs": top}]
        message = {"message": {"content": "yes"}, "finish_reason": "stop", "logprobs": {"content": content}}
        return {"choices": [message]}


@pytest.fixture
def vision() -> Iterator[tuple[VisionServer, str]]:
    server = VisionServer()
    with listening(server.app) as url:
        yield server, url


def served(folder: Path, judge: str) -> tuple[ListeningPort, ModelServices]:
    write_scorer(folder / "scorer")
    path = write_profile(folder)
    path.write_text(path.read_text().replace("[evaluator]\n", f"[evaluator]\n{judge}\n"))
    port = ListeningPort()
    port.serve(create_app(settings(path)))
    return port, ModelServices({"evaluator_service": port.base_url})


def test_a_judge_answers_each_question_on_each_image(
    tmp_path: Path, vision: tuple[VisionServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = vision
    monkeypatch.setenv("JUDGE_KEY", "secret")
    named = (
        f'judge = {{ url = "{url}/v1", model = "vlm", revision = "7", licence = "none", gigabytes = 1, '
        'api_key_variable = "JUDGE_KEY" }'
    )
    port, services = served(tmp_path, named)
    try:
        reply = services.judge(JudgeRequest(images=[IMAGE, IMAGE], questions=["Is there a bus?", "Is it night?"]))
        weights = services.info("evaluator_service").weights
    finally:
        services.close()
        port.close()
    assert [[round(p, 6) for p in row if isinstance(p, float)] for row in reply.yes] == [[0.9, 0.2], [0.9, 0.2]]
    assert reply.usage is None, "the server counts no tokens"
    assert server.keys == {"Bearer secret"}
    assert len(server.questions) == 4
    assert [(info.id, info.revision) for info in weights if info.role == "judge"] == [("vlm", f"7 {PROMPT}")]


def test_a_pair_is_asked_in_both_orders_and_a_refusal_is_no_answer(
    tmp_path: Path, vision: tuple[VisionServer, str]
) -> None:
    server, url = vision
    named = f'judge = {{ url = "{url}/v1", model = "vlm", revision = "7", licence = "none", gigabytes = 1 }}'
    port, services = served(tmp_path, named)
    try:
        pair = JudgeRequest(images=[IMAGE], questions=["Which shows night?"], beside=IMAGE, pairwise=True)
        paired = services.judge(pair)
        beside = services.judge(JudgeRequest(images=[IMAGE], questions=["A bus?", "A boat?"], beside=IMAGE))
    finally:
        services.close()
        port.close()
    assert paired.yes == [[0.5]], "it prefers a place, and so chooses neither"
    assert paired.usage is not None
    assert paired.usage[0] == TokenUsage(questions=2, prompt=100, completion=4)
    assert beside.yes[0][1] == "refused"
    assert server.pictures == [2] * 4


def test_without_a_judge_the_question_is_refused(tmp_path: Path) -> None:
    port, services = served(tmp_path, "")
    try:
        with pytest.raises(Problem, match=r"evaluator\.judge"):
            services.judge(JudgeRequest(images=[IMAGE], questions=["Is there a bus?"]))
    finally:
        services.close()
        port.close()
