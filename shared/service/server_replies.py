"""Read the replies of models behind external servers: take off known wrappers, refuse what is no answer.

Known are a block of reasoning before the answer (also without its opening tag, which some chat templates put into the
prompt), the channels of gpt-oss, the token that ends a turn, a code fence around the whole reply, and an introduction
("Here is the caption:"). Anything else that is no answer raises UnusableReply, with the server and the reply's first
words, and is counted in `contrafact_unusable_replies`.

Limit the bytes of an external server's reply while they are read.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator

import httpx
from prometheus_client import Counter

from shared.problems import BEGINS, DependencyFailed, UnusableReply
from shared.schemas.evaluation import Unanswered
from shared.service.completion import Completion

IDENTITY = {"Accept-Encoding": "identity"}
"""Asks for a reply without compression: a small compressed reply can unpack to more than the memory holds."""
REVISION = "4"  # increase it whenever the same reply of a server is read differently
UNUSABLE_REPLIES = Counter(
    "contrafact_unusable_replies",
    "Replies of models that are no answer, by model (a server's address) and fault",
    ["model", "fault"],
    registry=None,
)
_QUOTED = 80  # characters
_TAGS = r"(?:think|thinking|thought|reasoning|analysis|seed:think)"
_END_OF_REASONING = re.compile(rf"</{_TAGS}>\s*", re.IGNORECASE)
_REASONING = re.compile(rf"\s*(?:<{_TAGS}>|<\|channel\|>|\[THINK\]|◁think▷)", re.IGNORECASE)
_FINAL = re.compile(r".*<\|channel\|>final(?: ?<\|constrain\|>\w+)?<\|message\|>", re.DOTALL)
_END = re.compile(r"(?:<\|(?:im_end|eot_id|end|endoftext|return|end_of_text)\|>|</s>|<end_of_turn>)+\Z")
_FENCE = re.compile(r"```[\w-]*\n(.*)```", re.DOTALL)
_INTRODUCTION = re.compile(
    r"(?:(?:sure|certainly|of course|okay)[,!.] )?here(?:'s|’s| is) (?:a|the|your) (?:[\w-]+ ){0,3}?"
    r"(?:caption|description)(?: (?:of|for) (?:the|this|your) (?:image|picture|photo))?:\s+"
    r"|(?:\*\*)?(?:caption|description|final answer|answer)(?:\*\*)?:(?:\*\*)?\s+|assistant:?\s*\n\s*",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"([\"“])([^\"“”]*)[\"”]")
_MARKUP = re.compile(rf"</?{_TAGS}>|<\|[^|>\s]{{1,40}}\|>|```|\[/?THINK\]|◁/?think▷|\A\s*[<{{]", re.IGNORECASE)
_SERVICES = r"(?:help|assist|see|view|describe|identify|provide|process|analy[sz]e)"
_DECLINES = re.compile(
    rf"(?:(?:i(?:'|’)m|i am)\s+(?:so )?sorry\b|sorry[,.]|i apologi[sz]e\b|as an ai(?: language model)?[,.]"
    rf"|(?:i(?:'|’)m |i am )?(?:unable|not able) to {_SERVICES}\b|i (?:can(?:'|’)t|cannot|can not) {_SERVICES}\b)",
    re.IGNORECASE,
)
_PICTURE = r"(?:image|picture|photo)"
_NOT_SEEN = re.compile(  # by a model without vision, or a server that leaves the image out
    rf"(?:it (?:looks like|seems|appears)(?: that)? )?(?:i (?:do|did)(?:n(?:'|’)t| not) (?:see|have|receive)"
    rf" (?:an?|any|the|your) {_PICTURE}\b"
    rf"|(?:there(?: is|(?:'|’)s) )?no {_PICTURE}s? (?:(?:was|were|is|has been|have been) )?"
    r"(?:provided|attached|uploaded|included|given)\b"
    rf"|(?:the|your) {_PICTURE} (?:could not|couldn(?:'|’)t|cannot|can(?:'|’)t)"
    r" be (?:loaded|displayed|processed|opened)\b)"
    rf"|please (?:provide|upload|share|attach|send) (?:an?|the|your) {_PICTURE}\b|as an? (?:large )?language model\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?][\"”')]?(?=\s+[^\sa-z]|\s*\Z)")
_ABBREVIATION = re.compile(
    r"\b(?:st|mr|mrs|ms|dr|prof|mt|ft|no|vs|cf|approx|ca|ave|blvd|rd|jr|sr|inc|ltd|co|dept|fig|(?:[a-z]\.)*[a-z])\.\Z",
    re.IGNORECASE,
)


def answer_in(text: str) -> str:
    """The reply without reasoning, channels, the end of the turn, and a fence around all of it; others stay as is."""
    answer = text.strip()
    if end := _END.search(answer, max(0, len(answer) - 40)):
        answer = answer[: end.start()].rstrip()
    if answer.startswith("<|channel|>"):
        answer = _FINAL.sub("", answer)
    answer = answer[reasoning_length(answer) :]
    fenced = _FENCE.fullmatch(answer)
    answer = fenced[1].strip() if fenced and "```" not in fenced[1] else answer
    return text if answer == text.strip() else answer


def reasoning_length(text: str) -> int:
    """How many characters of reasoning come before the answer."""
    if text.lstrip().startswith(("{", "[", "```")):  # JSON may hold anything in its strings
        return 0
    ends = [match.end() for match in _END_OF_REASONING.finditer(text)]
    return ends[-1] if ends else 0


def begins_reasoning(answer: str) -> bool:
    """Whether what `answer_in` returned begins with reasoning all the same: it did not end."""
    return bool(_REASONING.match(answer))


def caption_in(text: str, *, finished: bool, server: str, instead: str = "") -> str:
    """The caption in the answer of `server`; if it was cut off, its whole sentences.

    `instead`: what the server sent in place of a text. Raises UnusableReply.
    """
    caption = text.strip()
    introduction = _INTRODUCTION.match(caption)
    caption = caption[introduction.end() :] if introduction else caption
    quoted = _QUOTES.fullmatch(caption)
    caption = quoted[2].strip() if quoted else caption
    if not caption:
        raise unusable(server, "empty", "gave an empty caption; check its model and its chat template", instead)
    if _MARKUP.search(caption):
        advice = "gave a caption with reasoning or markup; turn reasoning off there, or parse it there"
        raise unusable(server, "markup", advice, text)
    if _DECLINES.match(caption):
        raise unusable(server, "declined", "declined to write a caption", text)
    if _NOT_SEEN.match(caption):
        raise unusable(server, "not seen", "saw no image; serve a model that takes images, or check its settings", text)
    if finished:
        return caption
    whole = _whole_sentences(caption)
    if not whole:
        advice = "gave a caption that is cut off in its first sentence; raise `caption_max_tokens`, or ask for less in"
        raise unusable(server, "cut off", f"{advice} the profile's `instruction`", text)
    return whole


def declines(text: str) -> bool:
    """Whether a reply begins with words that decline to answer, or say that there is no image."""
    return bool(_DECLINES.match(text) or _NOT_SEEN.match(text))


def fault_of(completion: Completion) -> Unanswered:
    """Why a completion answers no question, given that it does not."""
    if not completion.finished:
        return "cut off"
    return "refused" if declines(completion.text) or not completion.text else "unclear"


def _whole_sentences(text: str) -> str:
    """The text up to the end of its last whole sentence, which no abbreviation is; empty if there is none."""
    ends = [end for end in _SENTENCE_END.finditer(text) if not _ABBREVIATION.search(text, 0, end.start() + 1)]
    return text[: ends[-1].end()] if ends else ""


def unusable(model: str, fault: str, sentence: str, reply: str) -> UnusableReply:
    """Count an unusable reply. The problem to raise says `sentence` of the model and quotes the first words."""
    count_unusable(model, fault)
    return UnusableReply(f"{model} {sentence}{beginning(reply)}")


def count_unusable(model: str, fault: str) -> None:
    """Count an unusable reply of a model, by one or two words of what is wrong with it."""
    UNUSABLE_REPLIES.labels(model, fault).inc()


def beginning(reply: str) -> str:
    """A sentence that quotes the first words of a reply; empty for one without words."""
    words = " ".join(reply.split())
    return f"{BEGINS}{words if len(words) <= _QUOTED else f'{words[:_QUOTED]}…'!r}" if words else ""


def refuse_compression(reply: httpx.Response, server: str) -> None:
    """Raises DependencyFailed for a compressed reply. Its sentence begins with `server`."""
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise DependencyFailed(f"{server} sent a compressed reply; make it honour Accept-Encoding")


async def limited(chunks: AsyncIterable[bytes], max_bytes: int, server: str) -> AsyncIterator[bytes]:
    """The chunks of a body. Raises DependencyFailed beyond `max_bytes`; its sentence begins with `server`."""
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise DependencyFailed(f"{server} sent more than {max_bytes:,} bytes")
        yield chunk


class LimitedStream(httpx.AsyncByteStream):
    """The stream of a reply that another library reads, with the limit of `limited`."""

    def __init__(self, stream: httpx.AsyncByteStream, max_bytes: int, server: str) -> None:
        self._stream = stream
        self._chunks = limited(stream, max_bytes, server)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await self._stream.aclose()
