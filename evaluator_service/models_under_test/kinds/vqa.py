"""Models that answer questions about images: vision-language models behind a server, and functions of this process.

    How many cars are there?
    Answer with one number, and nothing else.

The options of a question stand in an order that depends on the image. What a model says is read as an answer of the
question's type (`shared.answers`); a refusal, an answer that is cut off and one that cannot be read as such an
answer are none. A blind question is the same one without the picture; a function gets a grey picture instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NoReturn

import numpy as np

from evaluator_service.models_under_test.in_process import AnsweringFunction
from evaluator_service.models_under_test.kinds.model_kind import ModelKind
from evaluator_service.models_under_test.question import (
    MOST_LETTERS,
    AskedModel,
    answer_of,
    option_in,
    question_in_words,
)
from shared.answers import is_unknown, items_in, number_in, number_text, short_text, yes_or_no
from shared.media.images import Pixels, decode
from shared.problems import InvalidInput
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import AskedQuestion, ModelRequest
from shared.schemas.questions import (
    MAX_ANSWER_CHARACTERS,
    AskReply,
    AskRequest,
    GivenAnswer,
    ImageQuestion,
    QuestionType,
)
from shared.seeds import derive_seed
from shared.service.completion import Completion
from shared.service.endpoints import Services
from shared.service.server_replies import count_unusable, fault_of

HOW: Mapping[QuestionType, str] = {
    "yes/no": "Answer with yes or no, and nothing else.",
    "number": "Answer with one number, and nothing else.",
    "text": "Answer with a word or a short phrase, and nothing else.",
    "list": "Answer with all of them, separated by commas, or with none, and nothing else.",
}
GREY = 128  # of the picture that a function gets with a blind question
_WITHOUT_FILES = "models that answer questions are servers of the profile, or functions given to `contrafact.test`"


def in_words(question: ImageQuestion, options: Sequence[str]) -> str:
    """The question as a model gets it, with its options in this order."""
    if options:
        return question_in_words(question.question, options, letters=_has_letters(options))
    return f"{question.question}\n{HOW[question.type]}"


def _has_letters(options: Sequence[str]) -> bool:
    return len(options) <= MOST_LETTERS and min(map(len, options)) > 1


def ordered(question: ImageQuestion, image: bytes, seed: int) -> tuple[list[str], int]:
    """The options in the order of an image, and the seed of its question."""
    own = derive_seed("question about an image", seed, question.question, sha256(image).hexdigest())
    return random.Random(own).sample(question.options, len(question.options)), own


def read(question: ImageQuestion, options: Sequence[str], completion: Completion) -> GivenAnswer:
    """What a completion answers to a question whose options were shown in this order."""
    reply = completion.text[:MAX_ANSWER_CHARACTERS]
    text, place = answer_of(completion.text), None
    if options:
        place = option_in(text, options, letters=_has_letters(options), finished=completion.finished)
        answer = None if place is None else options[place]
    elif fault_of(completion) == "unclear" and not is_unknown(text):
        answer = _answer_in(question.type, text)
    else:
        answer = None
    if answer is None:
        return GivenAnswer(text=reply, unanswered=fault_of(completion))
    return GivenAnswer(text=reply, answer=answer, place=place)


def _answer_in(kind: QuestionType, text: str) -> str | None:
    """An answer without options in its canonical form; None if a text is none of this type."""
    if kind == "yes/no":
        return yes_or_no(text)
    if kind == "number":
        number = number_in(text)
        return None if number is None else number_text(number)
    words = short_text(text)
    return ", ".join(items_in(text)) or "none" if words is not None and kind == "list" else words


class AnsweringModel(AskedModel):
    """A server that is asked the questions of a request about each of its images."""

    @property
    def asked(self) -> AskedQuestion:
        """As of `AskedModel`; the questions come with the images."""
        return AskedQuestion(question="the questions that come with the images", usage=self._usage)

    async def predict(self, request: ModelRequest, deadline: float) -> AskReply:
        """The answers to each question about each image. Raises DeadlineExceeded, DependencyFailed and InvalidInput."""
        assert isinstance(request, AskRequest)
        pairs = [(image.png, question) for image in request.images for question in request.questions]
        tasks = [asyncio.ensure_future(self._ask(*pair, deadline, blind=request.blind)) for pair in pairs]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return _by_image(request, answers)

    async def _ask(self, image: bytes, question: ImageQuestion, deadline: float, *, blind: bool) -> GivenAnswer:
        options, seed = ordered(question, image, self._endpoint.seed)
        reply = await self.complete(image, in_words(question, options), seed, deadline, blind=blind)
        if reply is None:
            return GivenAnswer(unanswered="refused")
        given = read(question, options, reply.completion)
        if given.unanswered is not None:
            count_unusable(self._endpoint.url, given.unanswered)
        return given if reply.usage is None else given.model_copy(update={"usage": reply.usage})


def ask_function(model: AnsweringFunction, request: AskRequest) -> AskReply:
    """The answers of a function of the calling process, one question after another. Raises InvalidInput."""
    answers = [
        _from_function(model, image, question, blind=request.blind)
        for image in request.images
        for question in request.questions
    ]
    return _by_image(request, answers)


def _from_function(
    model: AnsweringFunction, image: ImagePayload, question: ImageQuestion, *, blind: bool
) -> GivenAnswer:
    pixels: Pixels = decode(image.png)
    options, _ = ordered(question, image.png, 0)
    shown = np.full_like(pixels, GREY) if blind else pixels
    text = model.answer(shown, in_words(question, options))
    return read(question, options, Completion(text=text, finished=True, prompt_tokens=0, completion_tokens=0))


def _by_image(request: AskRequest, answers: Sequence[GivenAnswer]) -> AskReply:
    size = len(request.questions)
    rows = [[*answers[start : start + size]] for start in range(0, len(answers), size)]
    return AskReply(questions=request.questions, answers=rows)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise InvalidInput(_WITHOUT_FILES)


VQA = ModelKind(
    name="vqa",
    noun="model that answers questions",
    endpoint=Services.ask,
    from_hub=_refuse,
    from_onnx=_refuse,
    examine=_refuse,
    most_bytes=lambda images, classes: 0,
    parse=_refuse,
    from_tensors=_refuse,
    receive=_refuse,
    reply=_refuse,
    trainable=None,
    question=AnsweringModel,
    least_classes=0,
    ask=ask_function,
)
