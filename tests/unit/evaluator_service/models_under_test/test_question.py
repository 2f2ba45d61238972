"""Vision-language models as classifiers, on servers of the tests' own that listen on a port."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from hypothesis import given
from hypothesis import strategies as st

from evaluator_service.models_under_test.question import (
    QuestionModel,
    answer_of,
    letters_in,
    option_in,
    question_in_words,
)
from shared.media.images import encode
from shared.profiles.evaluator import ModelEndpoint
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import PredictReply, PredictRequest, TokenUsage
from tests.support.language_servers import listening

CLASSES = ["bus", "fire truck", "truck"]
Answer = Callable[[dict[str, str], dict[str, Any]], object]  # letters by class, body → the reply's choice
PICTURES = [encode(np.full((8, 8, 3), value, np.uint8)) for value in range(12)]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[dict[str, Answer], str]]:
    """Answers by the name of the model, and the URL."""
    app, answers = FastAPI(), dict[str, Answer]()

    @app.post("/v1/chat/completions")
    async def answer(request: Request) -> Any:
        body = await request.json()
        *pictures, text = body["messages"][0]["content"]
        assert all(picture["image_url"]["url"].startswith("data:image/png;base64,") for picture in pictures)
        lines = [line.split(". ", 1) for line in text["text"].splitlines()[1:-1]]
        said = answers[body["model"]]({name: letter for letter, name in lines}, body)
        usage = {"usage": {"prompt_tokens": 900, "completion_tokens": 2, "total_tokens": 902}} if pictures else {}
        return said if isinstance(said, Response) else {"choices": [said], **usage}

    with listening(app) as url:
        yield answers, url


def ask(server: tuple[dict[str, Answer], str], answer: Answer, *, blind: bool = False, **more: object) -> PredictReply:
    answers, url = server
    answers["vlm"] = answer
    fields = {"url": f"{url}/v1", "protocol": "openai", "model": "vlm", "classes": CLASSES, "revision": "1"}
    endpoint = ModelEndpoint.model_validate({**fields, "licence": "none", **more})
    request = PredictRequest(model="vlm", images=[ImagePayload(png=png) for png in PICTURES], blind=blind)
    return asyncio.run(QuestionModel(endpoint).predict(request, time.monotonic() + 60))


def text(words: str, finish: str = "stop") -> dict[str, object]:
    return {"message": {"content": words}, "finish_reason": finish}


def test_log_probabilities_of_the_letters_become_probabilities(server: tuple[dict[str, Answer], str]) -> None:
    def answer(letters: dict[str, str], body: dict[str, Any]) -> object:
        assert (body["temperature"], body["top_logprobs"]) == (0, 20)
        shares = {"bus": 0.6, "fire truck": 0.3, "truck": 0.06}
        top = [{"token": f" {letters[name]}", "logprob": math.log(p), "bytes": None} for name, p in shares.items()]
        first = {"token": letters["bus"], "logprob": -0.5, "bytes": None, "top_logprobs": top}
        return {**text(letters["bus"]), "logprobs": {"content": [first]}}

    reply = ask(server, answer)
    assert reply.classes == CLASSES
    assert [row == pytest.approx([0.625, 0.3125, 0.0625]) for row in reply.probabilities] == [True] * len(PICTURES)
    assert set(reply.places or []) == {0, 1, 2}, "the options of each image stand in another order"


def test_a_server_without_log_probabilities_is_asked_without_them(server: tuple[dict[str, Answer], str]) -> None:
    asked = []

    def answer(letters: dict[str, str], body: dict[str, Any]) -> object:
        asked.append("logprobs" in body)
        if "logprobs" in body:
            return JSONResponse({"error": {"message": "logprobs are not supported"}}, 400)
        return text(f"<think>A bus? No.</think>The answer is {letters['truck']}.")

    assert ask(server, answer).probabilities == [[0.0, 0.0, 1.0]] * len(PICTURES)
    assert asked.count(False) == len(PICTURES)


def test_a_blind_question_has_the_same_options_in_the_same_order_and_no_picture(
    server: tuple[dict[str, Answer], str],
) -> None:
    asked: dict[bool, list[tuple[str, int]]] = {True: [], False: []}

    def answer(letters: dict[str, str], body: dict[str, Any]) -> object:
        *pictures, words = body["messages"][0]["content"]
        asked[not pictures].append((words["text"], body["seed"]))
        return text("B")

    seen, blind = ask(server, answer), ask(server, answer, blind=True)
    assert sorted(asked[True]) == sorted(asked[False])
    assert len(asked[True]) == len(PICTURES)
    assert (seen.probabilities, seen.places) == (blind.probabilities, blind.places)
    refused = ask(server, lambda letters, body: JSONResponse({"error": {"message": "no image"}}, 400), blind=True)
    assert refused.probabilities == ["refused"] * len(PICTURES)


def test_tokens_are_those_that_the_server_counts_and_cost_what_the_profile_says(
    server: tuple[dict[str, Answer], str],
) -> None:
    prices = {"prompt": 2.0, "completion": 100.0}
    counted = ask(server, lambda letters, body: text("B"), price_per_million=prices).usage
    each = list(filter(None, counted or []))
    free = [usage.model_copy(update={"cost": None}) for usage in each]
    assert free == [TokenUsage(questions=1, prompt=900, completion=2)] * len(PICTURES)
    assert [usage.cost for usage in each] == pytest.approx([0.002] * len(PICTURES))
    whole = sum(each, TokenUsage())
    assert (whole.questions, whole.prompt, whole.completion) == (12, 10_800, 24)
    assert whole.for_questions(100).cost == pytest.approx(0.2)
    assert ask(server, lambda letters, body: text("B")).usage == [
        TokenUsage(questions=1, prompt=900, completion=2)
    ] * len(PICTURES)
    assert ask(server, lambda letters, body: text("B"), blind=True).usage == [None] * len(PICTURES), "not counted there"


@pytest.mark.parametrize(
    ("choice", "fault"),
    [
        (text("I'm sorry, I can't help with that."), "refused"),
        ({"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}, "refused"),
        ({"message": {"content": None, "reasoning": "First,"}, "finish_reason": "length"}, "cut off"),
        (text("It could be a bus or a truck."), "unclear"),
        (text("Let me look at this step by step. First,", "length"), "cut off"),
    ],
)
def test_no_answer_is_neither_right_nor_wrong(
    server: tuple[dict[str, Answer], str], choice: dict[str, object], fault: str
) -> None:
    reply = ask(server, lambda letters, body: choice)
    assert reply.probabilities == [fault] * len(PICTURES)
    assert reply.places == [None] * len(PICTURES)


@given(order=st.permutations(CLASSES), place=st.integers(0, 2), wrap=st.sampled_from(
    ["{}", "{}.", "({})", "**{}**", "Answer: {}", "The correct answer is {}.", "Option {}", '{{"answer": "{}"}}']
))  # fmt: skip
def test_letters_and_names_are_read_in_the_words_around_them(order: list[str], place: int, wrap: str) -> None:
    assert option_in(answer_of(wrap.format("ABC"[place])), order, letters=True) == place
    assert option_in(answer_of(wrap.format(order[place])), order, letters=True) == place
    assert option_in(f"A picture of two {order[place]}s in snow.", order, letters=False) == place


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("The answer is \\boxed{B}", 1),
        ("<|begin_of_box|>B<|end_of_box|>", 1),
        ("<answer>fire truck</answer>", 1),
        ('{"reason": "not a bus", "answer": "B"}', 1),
        ('{"reason": "a bus"}, "answer": "B"', None),
        ('{"reason": "a bus", "confidence": 1}', None),
        ("This is not a bus.", None),
        ("B. fire truck, not a bus", 1),
        ("B. bus", None),
        ("A. bus - no.\nB. fire truck - yes.", None),
        ("<think>It could be B. Or a truck", None),
        ("[" * 100_000, None),
    ],
)
def test_wrapped_and_reasoned_answers(words: str, chosen: int | None) -> None:
    assert option_in(answer_of(words), CLASSES, letters=True) == chosen


def test_a_sentence_that_is_cut_off_names_nothing() -> None:
    assert option_in("Looking at the bus", CLASSES, letters=True, finished=False) is None
    assert option_in("fire truck", CLASSES, letters=True, finished=False) == 1
    assert option_in("B", CLASSES, letters=True, finished=False) == 1


def test_the_probability_of_an_article_is_not_that_of_a_letter(server: tuple[dict[str, Answer], str]) -> None:
    def answer(letters: dict[str, str], body: dict[str, Any]) -> object:
        top = [{"token": "A", "logprob": -0.01}]
        return {**text("A fire truck"), "logprobs": {"content": [{"token": "A", "top_logprobs": top}]}}

    assert ask(server, answer).probabilities == [[0.0, 1.0, 0.0]] * len(PICTURES)


def test_probabilities_that_are_no_numbers_are_not_used(server: tuple[dict[str, Answer], str]) -> None:
    def answer(letters: dict[str, str], body: dict[str, Any]) -> object:
        top = [{"token": letters["bus"], "logprob": float("nan")}]
        choice = {**text(letters["bus"]), "logprobs": {"content": [{"token": letters["bus"], "top_logprobs": top}]}}
        return Response(json.dumps({"choices": [choice]}), media_type="application/json")

    assert ask(server, answer).probabilities == [[1.0, 0.0, 0.0]] * len(PICTURES)


def test_letters_are_read_only_where_they_are_the_answer() -> None:
    assert option_in("A bus on a street", CLASSES, letters=True) == 0
    assert option_in("A dog", CLASSES, letters=True) is None
    assert letters_in([("A", math.log(0.2)), ("The", math.log(0.7))], 3) is None
    assert question_in_words("Which?", ["x", "y"], letters=False).splitlines()[1:3] == ["- x", "- y"]


@pytest.mark.parametrize(
    ("more", "words"),
    [({"model": ""}, "needs `model`"), ({"protocol": "contrafact"}, "`model`"), ({"classes": ["bus"]}, "two options")],
)
def test_what_cannot_be_asked_is_refused(more: dict[str, str], words: str) -> None:
    fields = {"url": "http://x/v1", "protocol": "openai", "model": "vlm", "classes": CLASSES, "revision": "1"}
    with pytest.raises(ValueError, match=words):
        QuestionModel(ModelEndpoint.model_validate({**fields, "licence": "none", **more}))
