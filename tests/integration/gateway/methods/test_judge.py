"""The judge behind the real evaluator and a server on a port: its answers become scores, its key comes from the
environment."""

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
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import JudgeRequest
from tests.support.language_servers import listening
from tests.support.service_settings import settings
from tests.support.small_evaluator import write_scorer
from tests.support.small_profile import write_profile

IMAGE = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))


class VisionServer:
    """Says yes with 90 % to questions on buses, and no with 80 % to others; it notes authorisation and questions."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.questions: list[str] = []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.answer)

    async def answer(self, request: Request) -> dict[str, object]:
        self.keys.add(request.headers.get("authorization", ""))
        image, text = (await request.json())["messages"][0]["content"]
        assert image["image_url"]["url"].startswith("data:image/png;base64,")
        self.questions.append(text["text"])
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
    assert [[round(p, 6) for p in row] for row in reply.yes] == [[0.9, 0.2], [0.9, 0.2]]
    assert server.keys == {"Bearer secret"}
    assert len(server.questions) == 4
    assert [(info.id, info.revision) for info in weights if info.role == "judge"] == [("vlm", "7")]


def test_without_a_judge_the_question_is_refused(tmp_path: Path) -> None:
    port, services = served(tmp_path, "")
    try:
        with pytest.raises(Problem, match=r"evaluator\.judge"):
            services.judge(JudgeRequest(images=[IMAGE], questions=["Is there a bus?"]))
    finally:
        services.close()
        port.close()
