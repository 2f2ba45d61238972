"""llm_service in front of other servers: a real llama.cpp, and TGI's contract over real decoding."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from transformers import AutoTokenizer

from llm_service.app import create_app
from llm_service.engines.transformers import load_transformers
from llm_service.generation import build_validator
from shared.profiles.profile import load_profile
from shared.schemas.language import GenerateRequest, Message, ScoreReply
from shared.service.completion import Completion
from shared.service.devices import Loading
from shared.service.endpoints import Services
from shared.service.model_service import ModelService
from tests.support.compose_files import BASE, GPU, composed
from tests.support.language_requests import KEYWORDS, generate_request
from tests.support.language_servers import listening
from tests.support.llama_cpp import llama_cpp_server, write_gguf
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_models import save_llama
from tests.support.small_profile import write_profile

# llama.cpp's grammar lets a model with random weights write broken UTF-8, so this schema names the words.
WORD = {"enum": ["night", "snow", "in the rain", "a red bus"]}
LETTERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "phrases": {"type": "array", "minItems": 1, "maxItems": 3, "items": WORD},
        "sure": {"enum": ["yes", "no"]},
    },
    "required": ["phrases", "sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    save_llama(folder / "language")
    return folder


@pytest.fixture(scope="module")
def llama_cpp(folder: Path) -> Iterator[Path]:
    """A profile whose language engine asks a running llama.cpp server."""
    with llama_cpp_server(write_gguf(folder / "language", folder / "small.gguf")) as url:
        (folder / "openai").mkdir()
        yield write_profile(folder / "openai", language_engine="openai", url=url)


def test_llama_cpp_replies_satisfy_the_schema(llama_cpp: Path) -> None:
    async def main() -> None:
        async with serving(create_app(settings(llama_cpp))) as client:
            requests = [generate_request("A bus.", json_schema=LETTERS, seed=seed) for seed in range(6)]
            replies = await asyncio.gather(*(call(client, Services.generate, request) for request in requests))
            greedy = [
                await call(client, Services.generate, generate_request("A bus.", json_schema=LETTERS, temperature=0.0))
                for _ in range(2)
            ]
        for reply in replies:
            assert build_validator(LETTERS).is_valid(reply.value)
            assert json.loads(reply.text) == reply.value
            assert reply.prompt_tokens > 0
        assert len({reply.text for reply in replies}) > 1
        assert greedy[0].value == greedy[1].value

    asyncio.run(main())


def test_a_server_that_cannot_score_is_a_failed_dependency(llama_cpp: Path) -> None:
    async def main() -> httpx.Response:
        async with serving(create_app(settings(llama_cpp))) as client:
            return await client.post("/v1/score", json={"texts": ["a bus"]})

    reply = asyncio.run(main())
    assert reply.status_code == 502
    assert "does not score prompts" in reply.json()["detail"]


@pytest.mark.slow
def test_the_deployed_template_is_llama_2s_own(tmp_path: Path) -> None:
    """As Meta's reference code writes a conversation; the server adds the first `<s>` itself."""
    command = composed(BASE, GPU)["services"]["language-server"]["command"]
    template = command[command.index("--chat-template") + 1]
    turns = [
        {"role": "system", "content": "Answer in JSON."},
        {"role": "user", "content": " A bus. "},
        {"role": "assistant", "content": "{}"},
        {"role": "user", "content": "A car."},
    ]
    weights = save_llama(tmp_path / "language", width=128)  # q8_0 divides heads by 32
    tokenizer = AutoTokenizer.from_pretrained(weights)
    start, end = tokenizer.bos_token, tokenizer.eos_token
    later = f" {{}} {end}{start}[INST] A car. [/INST]"
    with llama_cpp_server(write_gguf(weights, tmp_path / "templated.gguf"), template, True) as url:
        root = url.removesuffix("/v1")
        assert httpx.get(f"{root}/health", timeout=60).status_code == 200
        for messages, expected in (
            (turns, f"[INST] <<SYS>>\nAnswer in JSON.\n<</SYS>>\n\n A bus. [/INST]{later}"),
            (turns[1:], f"[INST] A bus. [/INST]{later}"),
            (turns[-1:], "[INST] A car. [/INST]"),
        ):
            reply = httpx.post(f"{root}/apply-template", json={"messages": messages}, timeout=60)
            assert reply.json()["prompt"].removeprefix(start) == expected
        # Greedy: the server answers 500 to some samples of random weights, which fit no format that it reads.
        answer = {"messages": turns, "max_tokens": 8, "temperature": 0, "response_format": {"type": "json_object"}}
        written = httpx.post(f"{url}/chat/completions", json=answer, timeout=120)
        assert written.status_code == 200, "with a quantised cache"


@pytest.mark.parametrize("engine", ["openai", "tgi"])
def test_a_dead_server_is_reported_within_the_deadline(tmp_path: Path, engine: str) -> None:
    profile = write_profile(tmp_path, language_engine=engine)

    async def main() -> httpx.Response:
        async with serving(create_app(settings(profile))) as client:
            body = generate_request("A bus.").model_dump_json()
            return await client.post("/v1/generate", content=body, headers={"X-Deadline-Seconds": "120"})

    reply = asyncio.run(main())
    assert (reply.status_code, reply.json()["type"]) == (502, "urn:contrafact:problem:dependency-failed")


@pytest.mark.parametrize("engine", ["openai", "tgi"])
def test_a_call_to_a_hanging_server_exceeds_its_deadline(tmp_path: Path, engine: str) -> None:
    app, released = FastAPI(), threading.Event()

    @app.post("/{path:path}")
    async def hang(path: str) -> None:
        await asyncio.to_thread(released.wait)

    async def main(url: str) -> httpx.Response:
        profile = write_profile(tmp_path, language_engine=engine, url=url)
        async with serving(create_app(settings(profile))) as client:
            body = generate_request("A bus.").model_dump_json()
            return await client.post("/v1/generate", content=body, headers={"X-Deadline-Seconds": "0.5"})

    with listening(app) as url:
        try:
            reply = asyncio.run(main(url))
        finally:
            released.set()
    assert reply.status_code == 504


def test_a_call_to_a_busy_server_is_repeated_after_its_retry_after(tmp_path: Path) -> None:
    app, moments = FastAPI(), list[float]()

    @app.post("/chat/completions")
    async def complete(request: Request) -> Response:
        moments.append(time.monotonic())
        if len(moments) < 3:
            return JSONResponse({"error": "busy"}, 503, {"Retry-After": "2"})
        message = {"role": "assistant", "content": '{"keywords": [], "sure": true}'}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}]})

    async def main(url: str) -> Any:
        profile = write_profile(tmp_path, url=url)
        async with serving(create_app(settings(profile))) as client:
            return (await call(client, Services.generate, generate_request("A bus."))).value

    with listening(app) as url:
        assert asyncio.run(main(url)) == {"keywords": [], "sure": True}
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert len(pauses) == 2
    assert min(pauses) > 1.9, "not after the second that it would wait by itself"


@pytest.mark.parametrize("text", ["no JSON", '{"keywords": 3, "sure": true}', ""])
def test_replies_that_ignore_the_schema_are_errors(tmp_path: Path, text: str) -> None:
    app, seeds = FastAPI(), list[int]()

    @app.post("/chat/completions")
    async def complete(request: Request) -> Response:
        seeds.append((await request.json())["seed"])
        return JSONResponse({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    async def main(url: str) -> httpx.Response:
        async with serving(create_app(settings(write_profile(tmp_path, url=url)))) as client:
            return await client.post("/v1/generate", content=generate_request("A bus.").model_dump_json())

    with listening(app) as url:
        reply = asyncio.run(main(url))
    assert (reply.status_code, reply.json()["type"]) == (502, "urn:contrafact:problem:generation-failed")
    assert len(set(seeds)) == 2


def tgi_server(folder: Path) -> FastAPI:
    """TGI's chat contract (grammar as `{"type": "json", "value": schema}`, no temperature 0) over our own decoding."""
    (folder / "tgi").mkdir(exist_ok=True)
    local = write_profile(folder, language_engine="transformers")
    profile = load_profile(str(local)).language
    service = ModelService(
        "tgi",
        "1",
        settings(local),
        lambda make_batcher: load_transformers(Loading(profile, "cpu", settings(local), make_batcher)),
    )

    @service.app.post("/v1/chat/completions")
    @service.app.post("/chat/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        grammar = body["response_format"]
        if grammar["type"] != "json" or body.get("temperature") == 0:
            return JSONResponse({"error": "Input validation error", "error_type": "validation"}, 422)
        return JSONResponse(chat_completion(await service.model.write(generation_of(body), time.monotonic() + 60)))

    @service.app.post("/")
    async def generate_text(request: Request) -> Response:
        body = await request.json()
        assert body["parameters"]["decoder_input_details"]
        [(total, count)] = await service.model.score([body["inputs"]], time.monotonic() + 60)
        prefill = [{"id": 1, "text": "", "logprob": None}]
        prefill += [{"id": 1, "text": "", "logprob": total / count} for _ in range(count)]
        details = {"finish_reason": "length", "generated_tokens": 1, "prefill": prefill, "tokens": [], "seed": None}
        return JSONResponse([{"generated_text": "x", "details": details}])

    return service.app


def generation_of(body: dict[str, Any]) -> GenerateRequest:
    """Our request for the text that a chat request of TGI's contract asks for."""
    return GenerateRequest(
        messages=[Message(**message) for message in body["messages"]],
        json_schema=body["response_format"]["value"],
        temperature=body.get("temperature") or 0.0,
        max_tokens=body["max_tokens"],
        seed=body["seed"],
    )


def chat_completion(reply: Completion) -> dict[str, object]:
    """The reply of TGI's chat contract."""
    choice = {
        "index": 0,
        "finish_reason": "stop" if reply.finished else "length",
        "message": {"role": "assistant", "content": reply.text},
    }
    usage = {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    head = {"id": "", "model": "m", "created": 0, "system_fingerprint": "3", "object": "chat.completion"}
    return {**head, "choices": [choice], "usage": usage}


def test_tgi_through_the_hub_client(folder: Path) -> None:
    torch.set_num_threads(1)

    async def main(url: str) -> tuple[list[Any], ScoreReply]:
        while (ready := httpx.get(f"{url}/readyz", timeout=60)).status_code != 200:
            assert not ready.json().get("failed"), ready.text
            await asyncio.sleep(0.05)
        profile = write_profile(folder / "tgi", language_engine="tgi", url=url)
        async with serving(create_app(settings(profile))) as client:
            replies = [
                await call(client, Services.generate, generate_request("A bus.", temperature=t)) for t in (0.0, 1.0)
            ]
            scored = await client.post("/v1/score", json={"texts": ["a bus"]})
            assert scored.status_code == 200, scored.text
        return [reply.value for reply in replies], ScoreReply.model_validate_json(scored.content)

    with listening(tgi_server(folder)) as url:
        values, scores = asyncio.run(main(url))
    assert all(build_validator(KEYWORDS).is_valid(value) for value in values)
    assert scores.tokens == [5]
    assert scores.log_likelihoods[0] < 0
