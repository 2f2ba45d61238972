"""Answers to questions about images: read from what a model says, and compared with the truth.

A model that is asked for a number may say "There are 3 cars." Reading takes the answer out of such words, or finds
none; it knows nothing of the truth. Comparing forgives what does not matter: letter case, punctuation, articles, "two"
for 2, the order of a list. The normal form is close to that of the VQA challenge (visualqa.org/evaluation.html), which
also knows contractions. Nothing forgives synonyms: name them among the answers.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence

_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_NUMBER_WORDS = {word: str(number) for number, word in enumerate(_WORDS)}
_ARTICLES = {"a", "an", "the"}
_DIGITS = r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d|[.,]\d|(?:st|nd|rd|th)\b)"
_NUMBER = re.compile(rf"(?<![\w.,]){_DIGITS}|\b(?:{'|'.join(_WORDS)}|none)\b", re.IGNORECASE)
_SAYS = r"(?:the )?(?:correct |final )?answer\b(?: is\b)?\s*:?\s*"
_PREFIX = re.compile(rf"\W*{_SAYS}", re.IGNORECASE)
_YES_OR_NO = re.compile(
    r"\W*(yes|yeah|yep|true|no|nope|false)\b(?! idea| way to| image| picture| and no)", re.IGNORECASE
)
_YES = {"yes", "yeah", "yep", "true"}
_UNKNOWN = re.compile(
    r"\W*(?:i (?:do not|don['’]t|cannot|can['’]t) (?:know|tell|say|see)|i(?:['’]m| am) not sure|unknown|unclear"
    r"|not (?:sure|visible|specified|clear|known)|(?:it )?(?:cannot|can['’]t|could not) (?:tell|be (?:determined|seen))"
    r"|cannot (?:determine|tell|say)|impossible to (?:say|tell)|no idea|n/a)\b",
    re.IGNORECASE,
)
_VERB = r"\b(?:is|are|was|were|has|have|shows?|reads?|says?|see)"
_DENIES = re.compile(r"\b(?:not?|nor|neither|never|none|or|without|cannot)\b|n t\b")
_ITEM_MARK = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+")
_ITEM_ENDS = re.compile(r"[\n;,]|\band\b|&", re.IGNORECASE)
_NOTHING = {"none", "nothing", "no", "empty"}
_STRIPPED = " \t\n\r.,:;!?*\"'“”‘’`"
LONGEST_TEXT = 200  # characters of a short text
_CLOSE = 1e-9  # of a number, by its size: 0.1 + 0.2 is 0.3


def as_text(answer: object) -> str:
    """An answer of a manifest as text: true is "yes", 3.0 is "3"."""
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    return number_text(answer) if isinstance(answer, int | float) else str(answer).strip()


def number_text(value: float) -> str:
    """A number as its shortest text that reads the same."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def normalised(text: str) -> str:
    """The words that count, in lower case: without punctuation between them and articles, and numbers as digits."""
    folded, before = text, ""
    while folded != before:  # folding may undo a normal form
        folded, before = unicodedata.normalize("NFKC", folded).casefold(), folded
    words = re.sub(r"(?<!\d)[^\w\s]|[^\w\s](?!\d)|_", " ", folded).split()
    words = [_NUMBER_WORDS.get(word, word) for word in words]
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def without_prefix(text: str) -> str:
    """What an answer says after "The answer is"; the text itself without such words."""
    found = _PREFIX.match(text)
    return text[found.end() :].strip() if found and text[found.end() :].strip(_STRIPPED) else text.strip()


def is_unknown(text: str) -> bool:
    """Whether an answer says that it does not know."""
    return _UNKNOWN.match(without_prefix(text)) is not None


def yes_or_no(text: str) -> str | None:
    """ "yes" or "no", by the first word of an answer; None without either."""
    found = _YES_OR_NO.match(without_prefix(text))
    return None if found is None else "yes" if found[1].casefold() in _YES else "no"


def number_in(text: str) -> float | None:
    """The one number in an answer, in digits or a word up to twelve; None if it has none, or several that differ."""
    for part in (without_prefix(text).partition("\n")[0], text):
        values = {_value(found) for found in _NUMBER.findall(part)}
        if len(values) == 1:
            return values.pop()
    return None


def _value(words: str) -> float:
    words = words.casefold().replace(",", "").replace("−", "-")
    return 0.0 if words == "none" else float(_NUMBER_WORDS.get(words, words))


def short_text(text: str) -> str | None:
    """The words of a short answer, as they stand; None without any, and for an essay."""
    words = without_prefix(text).strip(_STRIPPED)
    return words if normalised(words) and len(words) <= LONGEST_TEXT else None


def items_in(text: str) -> list[str]:
    """The normal forms of the things that a list names, sorted: one a line, or between commas, semicolons and "and"."""
    text = without_prefix(text)
    if text.startswith("["):
        try:
            parsed = json.loads(text)
            text = "\n".join(map(str, parsed)) if isinstance(parsed, list) else text
        except (ValueError, RecursionError):
            pass
    parts = [part for line in text.split("\n") for part in _ITEM_ENDS.split(_ITEM_MARK.sub("", line, count=1))]
    items = {item for part in parts if (item := normalised(part))}
    return [] if items <= _NOTHING else sorted(items)


def is_right(kind: str, answer: str, truths: Sequence[str], tolerance: float = 0.0) -> bool:
    """Whether an answer to a question of a type is right; `tolerance` of numbers."""
    if kind == "number":
        return any(same_number(answer, truth, tolerance) for truth in truths)
    if kind == "list":
        return items_in(answer) == sorted({item for truth in truths for item in items_in(truth)})
    return same_text(answer, truths) if kind == "text" else answer in truths


def same_number(answer: str, truth: str, tolerance: float) -> bool:
    """Whether two numbers differ by `tolerance` at most."""
    one, other = number_in(answer), number_in(truth)
    if one is None or other is None:
        return False
    return abs(one - other) <= tolerance + _CLOSE * max(1.0, abs(other))


def same_text(answer: str, truths: Sequence[str]) -> bool:
    """Whether an answer is one of the truths, by its normal form, or a sentence that ends in one: "It is red."."""
    words, known = normalised(answer), {normalised(truth) for truth in truths}
    if words in known:
        return True
    if _DENIES.search(words):
        return False
    return any(re.search(rf"{_VERB} {re.escape(truth)}$", words) for truth in known)
