"""Refuse a tokenizer's control words ("<|im_start|>", "<image>") in text that users or other models wrote.

A chat template writes content and control words into one text, where the tokenizer cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from shared.problems import InvalidInput


class AddedToken(Protocol):
    """A token that was added to a tokenizer's vocabulary."""

    content: str
    special: bool


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that this module needs."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """The added tokens by their id."""
        ...


def control_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The tokenizer's control words, in alphabetical order."""
    added = tokenizer.added_tokens_decoder.values()
    return tuple(sorted({token.content for token in added if token.special and token.content.strip()}))


def refuse_control_words(words: Iterable[str], texts: Iterable[str]) -> None:
    """Raise InvalidInput, naming the word, if a text holds one of the words."""
    text_list = list(texts)
    for word in words:
        if any(word in text for text in text_list):
            raise InvalidInput(f"the text holds {word!r}, a control word of the model; leave it out")
