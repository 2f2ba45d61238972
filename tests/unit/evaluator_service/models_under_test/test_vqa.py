"""Vision-language models that answer questions, on servers of the tests' own that listen on a port; functions too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from evaluator_service.models_under_test.in_process import AnsweringFunction
from evaluator_service.models_under_test.kinds.vqa import AnsweringModel, ask_function
from shared.media.images import Pixels, encode
from shared.problems import InvalidInput
from shared.profiles.evaluator import ModelEndpoint
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import TokenUsage
from shared.schemas.questions import AskReply, AskRequest, GivenAnswer, ImageQuestion
from tests.support.language_servers import listening

Answer = Callable[[str, list[str], dict[str, Any]], object]  # question, its further lines, body → the reply's choice
IMAGES = [ImagePayload(png=encode(np.full((8, 8, 3), value, np.uint8))) for value in range(12)]
QUESTIONS = [
    ImageQuestion.model_validate(fields).asked
    for fields in (
        {"question": "What is it?", "options": ["bus", "car", "van"], "answer": "bus"},
        {"question": "Is it wet?", "answer": "yes"},
        {"question": "How many?", "answer": 3},
        {"question": "What colour?", "answer": "red"},
        {"question": "What else?", "type": "list", "answers": ["tree", "sign"]},
    )
]
RIGHT = {"What is it?": "bus", "Is it wet?": "yes", "How many?": "3", "What colour?": "red", "What else?": "sign, tree"}
VERBOSE = {
    "What is it?": "The picture shows a bus on a street.",
    "Is it wet?": "Yes, the road is wet.",
    "How many?": "There are three of them.",
    "What colour?": "The answer is: Red.",
    "What else?": "- a sign\n- the tree",
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[dict[str, Answer], str]]:
    """Answers by the name of the model, and the URL."""
    app, answers = FastAPI(), dict[str, Answer]()

    @app.post("/v1/chat/completions")
    async def answer(request: Request) -> Any:
        body = await request.json()
        *_, text = body["messages"][0]["content"]
        question, *lines = text["text"].splitlines()
        said = answers[body["model"]](question, lines, body)
        usage = {"usage": {"prompt_tokens": 900, "completion_tokens": 2, "total_tokens": 902}}
        return said if isinstance(said, Response) else {"choices": [said], **usage}

    with listening(app) as url:
        yield answers, url


def ask(server: tuple[dict[str, Answer], str], answer: Answer, *, blind: bool = False) -> AskReply:
    answers, url = server
    answers["vlm"] = answer
    fields = {"url": f"{url}/v1", "kind": "vqa", "protocol": "openai", "model": "vlm", "revision": "1"}
    endpoint = ModelEndpoint.model_validate({**fields, "licence": "none"})
    request = AskRequest(model="vlm", images=IMAGES, questions=QUESTIONS, blind=blind)
    return asyncio.run(AnsweringModel(endpoint).predict(request, time.monotonic() + 60))


def text(words: str, finish: str = "stop") -> dict[str, object]:
    return {"message": {"content": words}, "finish_reason": finish}


@pytest.mark.parametrize("said", [RIGHT, VERBOSE])
def test_each_type_of_answer_is_read_in_the_words_around_it(
    server: tuple[dict[str, Answer], str], said: dict[str, str]
) -> None:
    reply = ask(server, lambda question, lines, body: text(said[question]))
    assert reply.questions == QUESTIONS
    expected = [answer.casefold() for answer in RIGHT.values()]
    assert [[given.answer.casefold() for given in answers] for answers in reply.answers] == [expected] * len(IMAGES)
    assert {given.place for answers in reply.answers for given in answers[:1]} == {0, 1, 2}, "the order differs"
    assert {given.usage for answers in reply.answers for given in answers} == {
        TokenUsage(questions=1, prompt=900, completion=2)
    }


def test_options_have_letters_and_the_other_questions_say_how_to_answer(
    server: tuple[dict[str, Answer], str],
) -> None:
    asked: dict[str, list[str]] = {}

    def answer(question: str, lines: list[str], body: dict[str, Any]) -> object:
        asked[question] = lines
        return text("B" if len(lines) == 4 else "yes")

    reply = ask(server, answer)
    assert sorted(line.partition(". ")[2] for line in asked["What is it?"][:-1]) == ["bus", "car", "van"]
    assert asked["How many?"] == ["Answer with one number, and nothing else."]
    assert {answers[0].place for answers in reply.answers} == {1}
    assert [given.unanswered for given in reply.answers[0][1:3]] == [None, "unclear"]


@pytest.mark.parametrize(
    ("choice", "fault"),
    [
        (text("I'm sorry, I can't help with that."), "refused"),
        ({"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}, "refused"),
        (text("Let me count them one by one. First,", "length"), "cut off"),
        (text("I don't know."), "unclear"),
        (text("unknown"), "unclear"),
    ],
)
def test_no_answer_is_neither_right_nor_wrong(
    server: tuple[dict[str, Answer], str], choice: dict[str, object], fault: str
) -> None:
    reply = ask(server, lambda question, lines, body: choice)
    assert {given.unanswered for answers in reply.answers for given in answers} == {fault}


def test_a_blind_question_has_the_same_words_and_no_picture(server: tuple[dict[str, Answer], str]) -> None:
    asked: dict[bool, list[tuple[str, int]]] = {True: [], False: []}

    def answer(question: str, lines: list[str], body: dict[str, Any]) -> object:
        *pictures, words = body["messages"][0]["content"]
        asked[not pictures].append((words["text"], body["seed"]))
        return text(RIGHT[question])

    seen, blind = ask(server, answer), ask(server, answer, blind=True)
    assert sorted(asked[True]) == sorted(asked[False])
    assert seen == blind
    refused = ask(server, lambda *_: JSONResponse({"error": {"message": "no image"}}, 400), blind=True)
    assert {given.unanswered for answers in refused.answers for given in answers} == {"refused"}


def test_a_function_gets_the_image_and_the_question_and_a_grey_image_with_a_blind_one() -> None:
    def answer(image: Pixels, question: str) -> str:
        first = question.splitlines()[0]
        return RIGHT[first] if len(np.unique(image)) > 1 else "I cannot see an image"

    picture = ImagePayload(png=encode(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)))
    model = AnsweringFunction("vqa", answer, "1")
    request = AskRequest(model="vlm", images=[picture], questions=QUESTIONS)
    (answers,) = ask_function(model, request).answers
    assert [given.answer for given in answers] == [*RIGHT.values()]
    (blind,) = ask_function(model, request.model_copy(update={"blind": True})).answers
    assert {given.unanswered for given in blind} == {"refused"}


def test_a_function_that_fails_or_returns_no_text_is_refused() -> None:
    request = AskRequest(model="vlm", images=IMAGES[:1])
    for function, words in ((lambda *_: 1 / 0, "ZeroDivisionError"), (lambda *_: 3, "answer as text")):
        with pytest.raises(InvalidInput, match=words):
            ask_function(AnsweringFunction("vqa", function, "1"), request)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"classes": ["bus", "car"]}, "has no classes"),
        ({"protocol": "contrafact", "model": ""}, 'protocol = "openai"'),
        ({"kind": "classification"}, "has classes"),
    ],
)
def test_what_cannot_answer_questions_is_refused(more: dict[str, object], words: str) -> None:
    fields = {"url": "http://x/v1", "kind": "vqa", "protocol": "openai", "model": "vlm", "revision": "1"}
    with pytest.raises(ValueError, match=words):
        ModelEndpoint.model_validate({**fields, "licence": "none", **more})


def test_an_answer_and_a_reason_for_none_exclude_each_other() -> None:
    for fields in ({}, {"answer": "3", "unanswered": "refused"}):
        with pytest.raises(ValueError, match="either an answer"):
            GivenAnswer.model_validate(fields)
