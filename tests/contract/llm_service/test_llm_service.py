"""llm_service over HTTP, on a small random Llama: replies follow their schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import llguidance
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from llm_service.app import create_app
from llm_service.engines.transformers import JSON_STYLE, load_transformers
from llm_service.generation import build_validator
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile
from shared.schemas.language import GenerateReply, GenerateRequest, Message, ScoreReply, ScoreRequest
from shared.schemas.service import ServiceInfo
from shared.service.devices import Loading
from shared.service.endpoints import Services
from tests.support.language_requests import KEYWORDS, SYSTEM, generate_request
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_models import save_llama
from tests.support.small_profile import write_profile

COUNT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 99}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    save_llama(folder / "language")
    return write_profile(folder, language_engine="transformers")


def requests() -> list[GenerateRequest]:
    """Prompts of different lengths, temperatures, schemas and seeds, some of them equal."""
    contents = ["A bus.", "A red car stands in the rain, beside a sign." * 3, "A bus.", "Two dogs."]
    mixed = [generate_request(text, seed=n, temperature=t) for n, text in enumerate(contents) for t in (0.0, 0.7, 1.5)]
    return [
        *mixed,
        generate_request("How many?", json_schema=COUNT),
        generate_request("A bus.", seed=0, temperature=1.5),
    ]


@pytest.mark.slow
def test_every_reply_satisfies_its_schema(profile: Path) -> None:
    async def main() -> list[GenerateReply]:
        async with serving(create_app(settings(profile))) as client:
            return await asyncio.gather(*(call(client, Services.generate, request) for request in requests()))

    for request, reply in zip(requests(), asyncio.run(main()), strict=True):
        assert build_validator(request.json_schema).is_valid(reply.value)
        assert json.loads(reply.text) == reply.value
        assert reply.attempts == 1
        assert reply.prompt_tokens > 0
        assert reply.completion_tokens > 0


@pytest.mark.slow
def test_the_smallest_nucleus_is_the_most_probable_token(profile: Path) -> None:
    greedy, sampled = (generate_request("A bus.", seed=3, temperature=temperature) for temperature in (0.0, 1.5))
    narrow = sampled.model_copy(update={"top_p": 1e-6})
    assert "top_p" not in sampled.model_dump(), "calls recorded before it existed keep their keys"
    assert GenerateRequest.model_validate_json(narrow.model_dump_json()) == narrow

    async def main() -> list[GenerateReply]:
        async with serving(create_app(settings(profile, deterministic=True))) as client:
            return [await call(client, Services.generate, request) for request in (greedy, sampled, narrow)]

    expected, other, reply = asyncio.run(main())
    assert reply == expected != other


def test_deterministic_replies_are_the_same_alone_and_in_company(profile: Path) -> None:
    async def main() -> None:
        async with serving(create_app(settings(profile, deterministic=True, max_batch=3))) as client:
            together = await asyncio.gather(*(call(client, Services.generate, request) for request in requests()))
            alone = [await call(client, Services.generate, request) for request in requests()]
            turned = await asyncio.gather(*(call(client, Services.generate, request) for request in requests()[::-1]))
        assert list(together) == alone == list(turned)[::-1]
        assert together[2] == together[-1]  # the same request twice
        assert len({reply.text for reply in together}) > 4

    asyncio.run(main())


def test_deterministic_scores_are_bitwise_the_same_alone_and_in_company(profile: Path) -> None:
    texts = ["a", "a bus at night", "a bus at night" * 5, "snow", "a"]

    async def score(client: httpx.AsyncClient, texts: Sequence[str]) -> list[float]:
        return (await call(client, Services.score, ScoreRequest(texts=list(texts)))).log_likelihoods

    async def main() -> None:
        async with serving(create_app(settings(profile, deterministic=True, max_batch=2))) as client:
            together = await score(client, texts)
            assert together == [(await score(client, [text]))[0] for text in texts]
            assert together == (await score(client, texts[::-1]))[::-1]

    asyncio.run(main())


def test_scores_are_the_log_likelihoods_that_the_model_gives(profile: Path) -> None:
    texts = ["a bus", "a bus at night in the snow"]

    async def main() -> ScoreReply:
        async with serving(create_app(settings(profile))) as client:
            return ScoreReply.model_validate_json((await client.post("/v1/score", json={"texts": texts})).content)

    reply = asyncio.run(main())
    folder = profile.parent / "language"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), LlamaForCausalLM.from_pretrained(folder).eval()
    for text, value, count in zip(texts, reply.log_likelihoods, reply.tokens, strict=True):
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            loss = model(input_ids=tokens, labels=tokens).loss
        assert count == tokens.shape[1] - 1
        assert value == pytest.approx(-float(loss) * count, rel=1e-5)


@pytest.mark.parametrize("system", [[SYSTEM], []])
def test_kept_beginnings_and_padding_change_no_token(profile: Path, system: list[Message]) -> None:
    """Batched, cached, padded decoding writes what the plainest loop writes: one row, the whole prompt, no cache."""
    torch.set_num_threads(1)

    def keep(*_: Any, **__: Any) -> Any:
        return None

    language = load_profile(str(profile)).language
    engine = load_transformers(Loading(language, "cpu", settings(profile, deterministic=True), keep))
    request = generate_request("A red car stands in the rain.", temperature=0.0)
    request = request.model_copy(update={"messages": [*system, request.messages[-1]]})
    prefix, prompt = engine.tokenize(request.messages)
    assert bool(prefix) == bool(system)  # a short beginning is not kept
    grammar = llguidance.LLMatcher.grammar_from_json_schema(KEYWORDS, overrides=JSON_STYLE)
    folder = profile.parent / "language"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), LlamaForCausalLM.from_pretrained(folder).eval()
    matcher = llguidance.LLMatcher(llguidance.hf.from_tokenizer(tokenizer), grammar)
    tokens = [*prefix, *prompt]
    while not matcher.is_stopped():
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([tokens])).logits[0, -1]
        allowed = torch.from_numpy(np.frombuffer(matcher.compute_logit_bias(), np.uint8) > 0)
        tokens.append(int(logits.masked_fill(~allowed, -torch.inf).argmax()))
        matcher.consume_token(tokens[-1])

    async def main() -> GenerateReply:
        async with serving(create_app(settings(profile, deterministic=True, max_batch=3))) as client:
            return await call(client, Services.generate, request)

    assert asyncio.run(main()).text == tokenizer.decode(tokens[len(prefix) + len(prompt) :])


def test_a_truncated_reply_is_retried_once_and_then_a_typed_problem(profile: Path) -> None:
    async def main() -> httpx.Response:
        async with serving(create_app(settings(profile))) as client:
            body = generate_request("A bus.", max_tokens=5).model_dump_json()
            return await client.post("/v1/generate", content=body)

    reply = asyncio.run(main())
    assert reply.status_code == 502
    document = reply.json()
    assert document["type"] == "urn:contrafact:problem:generation-failed"
    assert ["max_tokens" in fault for fault in document["faults"]] == [True, True]


BOUNDED = {"type": "string", "maxLength": 5}
UNBOUNDED: list[tuple[dict[str, Any], str]] = [
    ({"type": "string"}, "json_schema: string needs `maxLength`"),
    ({"type": "array", "items": BOUNDED}, "json_schema: array needs `maxItems`"),
    ({"type": "array", "maxItems": 2}, "needs `items`"),
    ({"type": "array", "maxItems": 2, "items": {"type": "string"}}, "json_schema.items: string needs"),
    ({"type": "object", "properties": {"a": BOUNDED}}, "additionalProperties: false"),
    ({"type": "integer", "minimum": 0}, "integer needs `maximum`"),
    ({"anyOf": [BOUNDED, {"type": "string"}]}, "json_schema.anyOf[1]: string"),
    ({"$ref": "#/$defs/a", "$defs": {"a": BOUNDED}}, "is not supported"),
    ({"type": ["string", "null"], "maxLength": 3}, "give one `type`"),
    ({}, "give one `type`"),
    ({"type": "strong"}, "json_schema.type: 'strong' is not valid"),
    ({"type": "array", "maxItems": 2, "items": True}, "json_schema.items: `true` and `false` do not bound"),
]


@pytest.mark.parametrize(("schema", "message"), UNBOUNDED)
def test_unbounded_schemas_are_refused_with_the_place(profile: Path, schema: dict[str, Any], message: str) -> None:

    with pytest.raises(InvalidInput) as refusal:
        build_validator(schema)
    assert message in refusal.value.detail


def test_requests_that_do_not_fit_are_refused_with_a_reason(profile: Path) -> None:
    long = "very " * 3_500
    cases: list[tuple[str, dict[str, Any], str]] = [
        (
            "/v1/generate",
            generate_request("A bus.", json_schema={"type": "string"}).model_dump(mode="json"),
            "maxLength",
        ),
        ("/v1/generate", generate_request(long).model_dump(mode="json"), "the model reads 4096; shorten the messages"),
        ("/v1/score", {"texts": [long]}, "a text to score must have"),
        ("/v1/score", {"texts": []}, "at least 1 item"),
    ]

    async def main() -> None:
        async with serving(create_app(settings(profile))) as client:
            for path, body, message in cases:
                reply = await client.post(path, json=body)
                assert reply.status_code == 422
                assert message in reply.json()["detail"]

    asyncio.run(main())


def test_info_names_the_weights(profile: Path) -> None:
    async def main() -> ServiceInfo:
        async with serving(create_app(settings(profile))) as client:
            return ServiceInfo.model_validate_json((await client.get("/v1/info")).content)

    info = asyncio.run(main())
    assert [item.role for item in info.weights] == ["language"]
    assert info.service == "llm_service"
