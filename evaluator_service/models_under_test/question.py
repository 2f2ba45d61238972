"""A vision-language model under test as a classifier: it is asked which of the classes an image shows.

    Which of these does the picture show?
    A. bus
    B. truck
    Answer with the letter of one option, and nothing else.

The options of each image stand in an order of their own, so that a model that prefers the first one does not seem to
know a class. Up to 20 classes have letters, since so many log-probabilities of the first token are given by servers:
from these come the probabilities. Without them, and for more classes, the class that the answer names has all of it.

A blind question is the same one without the picture: what a model answers then, it does not read from pictures.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.problems import InvalidInput
from shared.profiles.evaluator import ModelEndpoint
from shared.profiles.weights import Server
from shared.schemas.base import Contract
from shared.schemas.evaluation import (
    AskedQuestion,
    ModelRequest,
    PredictReply,
    PredictRequest,
    TokenUsage,
    Unanswered,
)
from shared.seeds import derive_seed
from shared.service.server_replies import begins_reasoning, count_unusable, fault_of

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionContentPartParam, ChatCompletionUserMessageParam

    from shared.service.completion import Completion

MOST_LETTERS = 20  # log-probabilities of a token that OpenAI's API, vLLM and others return at most
CERTAIN = 0.5  # of the first token's probability that must lie on letters, or else the answer is read as text
_SAYS = r"(?:the )?(?:correct |final )?(?:answer|option)(?: is)?"
_ENDINGS = ".,:;!?*)]}\"'”’` \n"
_LONGEST = 10_000  # characters of an answer that is read
_WRAPPED = re.compile(  # by GLM, models that reason, and those trained on mathematics
    r"<\|begin_of_box\|>(.*?)<\|end_of_box\|>|<answer>(.*?)</answer>|\\boxed\{(?:\\text\{)?([^{}]*)\}", re.DOTALL
)
_KEYS = {"answer", "option", "choice", "class", "label", "letter"}  # of JSON with several values
_DENIES = re.compile(r"\b(?:not?|nor|neither|never|none|without|cannot)\b|n['’]t\b")


class _Answer(NamedTuple):
    """Probabilities by class or why there are none, the place of the likeliest among the options, and its tokens."""

    row: list[float] | Unanswered
    place: int | None = None
    usage: TokenUsage | None = None


class ServerReply(NamedTuple):
    """A completion, the likeliest first tokens with their log-probabilities, and its tokens."""

    completion: Completion
    tokens: list[tuple[str, float]]
    usage: TokenUsage | None


class AskedModel(ABC):
    """A server that is asked about one image after another, several at a time."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        """Raises ValueError for a missing key, or a `ca_file` that cannot be read."""
        from shared.service.chat_server import ChatServer  # a slow import that only such a model needs

        settings = {"url", "model", "revision", "licence", "api_key_variable", "ca_file", "concurrency"}
        self._server = ChatServer(Server(**endpoint.model_dump(include=settings), gigabytes=1))
        self._endpoint, self._top = endpoint, 0
        self.kind, self.classes = endpoint.kind, list(endpoint.classes)
        self._usage = TokenUsage()

    @property
    @abstractmethod
    def asked(self) -> AskedQuestion:
        """Its question in words, and the tokens of its answers until now."""

    @abstractmethod
    async def predict(self, request: ModelRequest, deadline: float) -> Contract:
        """The answers for images. Raises DeadlineExceeded, DependencyFailed and InvalidInput (its refusal)."""

    async def complete(self, image: bytes, text: str, seed: int, deadline: float, *, blind: bool) -> ServerReply | None:
        """What the server says to a text beside an image (PNG); `blind`: without the image.

        None if it refuses a question without an image. Raises as `predict`.
        """
        url = "data:image/png;base64," + base64.b64encode(image).decode()
        shown: list[ChatCompletionContentPartParam] = [{"type": "image_url", "image_url": {"url": url}}]
        message: ChatCompletionUserMessageParam = {
            "role": "user",
            "content": [*([] if blind else shown), {"type": "text", "text": text}],
        }
        try:
            completion, tokens = await self._answer(message, seed % 2**31, deadline)
        except InvalidInput:
            if not blind:
                raise
            return None
        return ServerReply(completion, tokens, self._note(completion))

    def _note(self, completion: Completion) -> TokenUsage | None:
        """The tokens of an answer, which are added to those until now; None of a server that does not count them."""
        prompt, answer, prices = (
            completion.prompt_tokens,
            completion.completion_tokens,
            self._endpoint.price_per_million,
        )
        if not prompt + answer:
            return None
        cost = None if prices is None else (prompt * prices.prompt + answer * prices.completion) / 1e6
        usage = TokenUsage(questions=1, prompt=prompt, completion=answer, cost=cost)
        self._usage += usage
        return usage

    async def _answer(
        self, message: ChatCompletionUserMessageParam, seed: int, deadline: float
    ) -> tuple[Completion, list[tuple[str, float]]]:
        sampling: dict[str, Any] = {
            "temperature": self._endpoint.temperature,
            "max_tokens": self._endpoint.max_tokens,
            "seed": seed,
        }
        try:
            return await self._server.answer([message], deadline, top_logprobs=self._top, **sampling)
        except InvalidInput:
            if not self._top:
                raise
            answer = await self._server.answer([message], deadline, top_logprobs=0, **sampling)
        self._top = 0  # this server refuses log-probabilities, not the image
        return answer


class QuestionModel(AskedModel):
    """A server that is asked the question of `endpoint` about each image."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        """Raises ValueError for fewer than two classes, too."""
        if len(endpoint.classes) < 2:
            raise ValueError(f"a question has at least two options; name the classes of {endpoint.url}")
        super().__init__(endpoint)
        self._has_letters = len(endpoint.classes) <= MOST_LETTERS and min(map(len, endpoint.classes)) > 1
        self._top = MOST_LETTERS if self._has_letters else 0

    @property
    def asked(self) -> AskedQuestion:
        """Its question with the options, in the profile's order, and the tokens of its answers until now."""
        text = question_in_words(self._endpoint.question, self.classes, letters=self._has_letters)
        return AskedQuestion(question=text, usage=self._usage)

    async def predict(self, request: ModelRequest, deadline: float) -> PredictReply:
        """The answers for images. Raises DeadlineExceeded, DependencyFailed and InvalidInput (its refusal)."""
        blind = isinstance(request, PredictRequest) and request.blind
        tasks = [asyncio.ensure_future(self._ask(image.png, deadline, blind=blind)) for image in request.images]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return PredictReply(
            classes=self.classes,
            probabilities=[answer.row for answer in answers],
            places=[answer.place for answer in answers],
            usage=[answer.usage for answer in answers],
        )

    async def _ask(self, image: bytes, deadline: float, *, blind: bool) -> _Answer:
        """`blind`: without the image. A server that refuses such a question has no answer to it."""
        endpoint = self._endpoint
        seed = derive_seed("question", endpoint.seed, sha256(image).hexdigest())
        order = random.Random(seed).sample(range(len(self.classes)), len(self.classes))
        options = [self.classes[number] for number in order]
        reply = await self.complete(
            image,
            question_in_words(endpoint.question, options, letters=self._has_letters),
            seed,
            deadline,
            blind=blind,
        )
        if reply is None:
            return _Answer("refused")
        completion, tokens, usage = reply
        text = answer_of(completion.text)
        by_letter = self._has_letters and letter_in(text, len(options)) is not None  # "A" may also begin "A bus"
        shares = letters_in(tokens, len(options)) if by_letter else None
        if shares is None:
            chosen = option_in(text, options, letters=self._has_letters, finished=completion.finished)
            if chosen is None:
                fault = fault_of(completion)
                count_unusable(endpoint.url, fault)
                return _Answer(fault, None, usage)
            shares = [float(place == chosen) for place in range(len(options))]
        by_class = dict(zip(order, shares, strict=True))
        row = [by_class[number] for number in range(len(options))]
        return _Answer(row, shares.index(max(shares)), usage)


def question_in_words(question: str, options: Sequence[str], *, letters: bool) -> str:
    """The question with its options, in this order."""
    if letters:
        lines = [f"{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options, strict=False)]
        how = "Answer with the letter of one option, and nothing else."
    else:
        lines, how = [f"- {option}" for option in options], "Answer with the name of one option, and nothing else."
    return "\n".join([question, *lines, how])


def letters_in(tokens: Sequence[tuple[str, float]], options: int) -> list[float] | None:
    """The probabilities of the options' letters, which sum to 1; None if an answer probably begins otherwise.

    `tokens`: the likeliest first tokens with their natural-log probabilities.
    """
    probabilities = dict.fromkeys(string.ascii_uppercase[:options], 0.0)
    for token, logprob in tokens:
        letter = token.strip().lstrip("(*[\"'“‘`").rstrip(_ENDINGS)
        if letter in probabilities:
            probabilities[letter] += math.exp(min(logprob, 0.0))
    total = sum(probabilities.values())
    return None if total < CERTAIN else [value / total for value in probabilities.values()]


def answer_of(text: str) -> str:
    """The answer in JSON, tags or a box; empty if that holds none or is too long to be one, and for open reasoning."""
    answer = text.strip()
    if len(answer) > _LONGEST or begins_reasoning(answer):
        return ""
    wrapped = {"".join(filter(None, found.groups())).strip() for found in _WRAPPED.finditer(answer)}
    answer = wrapped.pop() if len(wrapped) == 1 else answer
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return "" if answer.startswith("{") else answer
    if not isinstance(value, dict):
        return answer
    named = [part for name, part in value.items() if len(value) == 1 or name.casefold() in _KEYS]
    return str(named[0]) if len(named) == 1 else ""


def letter_in(answer: str, options: int) -> int | None:
    """The place of the option whose letter is the answer; None without one, and if further lines have others."""
    known = string.ascii_uppercase[:options]
    # Before other words a letter needs a mark: "A bus" begins with an article.
    letter = rf"\W*(?:{_SAYS}\W+)?(?:option )?([{known}])(?=[.):*\]]|\s*$)"
    begins = re.match(letter, answer, re.IGNORECASE)
    others = {found.upper() for found in re.findall(rf"^\W*([{known}])[.):]", answer, re.IGNORECASE | re.MULTILINE)}
    return known.index(begins[1].upper()) if begins and others <= {begins[1].upper()} else None


def option_in(answer: str, options: Sequence[str], *, letters: bool, finished: bool = True) -> int | None:
    """The place of the one option that an answer names, by its letter or its name; None if it names none, or several.

    Names may stand in a sentence that ends and denies nothing. A name that is part of a longer one that stands there
    does not count.
    """
    named, rest = set[int](), answer.casefold()
    for place in sorted(range(len(options)), key=lambda place: -len(options[place])):
        pattern = rf"(?<!\w){re.escape(options[place].casefold())}(?:e?s)?(?!\w)"
        rest, count = re.subn(pattern, "\0", rest)
        named |= {place} if count else set()
    chosen = letter_in(answer, len(options)) if letters else None
    if chosen is not None:
        return chosen if not named or chosen in named else None
    is_sentence = bool(rest.strip("\0" + _ENDINGS))
    return named.pop() if len(named) == 1 and not (is_sentence and (not finished or _DENIES.search(rest))) else None
