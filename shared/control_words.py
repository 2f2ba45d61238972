"""Words by which a tokenizer's models are steered ("<|im_start|>", "<image>"), and their refusal in what others wrote.

A template puts content beside them as text, and the tokenizer could not tell them apart. It knows no library of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from shared.problems import InvalidInput


class AddedToken(Protocol):
    """A token that was added to a vocabulary by hand."""

    content: str
    special: bool


class Tokenizer(Protocol):
    """What is asked of a tokenizer (of Hugging Face's kind)."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """The tokens that were added by hand, by their number."""
        ...


def control_words(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The tokenizer's control words, in alphabetical order."""
    added = tokenizer.added_tokens_decoder.values()
    return tuple(sorted({token.content for token in added if token.special and token.content.strip()}))


def refuse_control_words(words: Iterable[str], texts: Iterable[str]) -> None:
    """Raise InvalidInput, which names it, when a text holds one of the words."""
    written = list(texts)
    for word in words:
        if any(word in text for text in written):
            raise InvalidInput(f"the text holds {word!r}, a control word of the model; leave it out")
