"""Characters that make a text look like another one: controls, line breaks, and what turns the direction of reading."""

from __future__ import annotations

import unicodedata

_DECEPTIVE = frozenset({"Cc", "Cs", "Zl", "Zp"})  # controls, halves of characters, line and paragraph separators
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_deceptive(character: str) -> bool:
    """Whether one character is shown as nothing, as a new line, or changes how its neighbours are shown.

    Marks that right-to-left and joined scripts need (U+200E, U+200F, U+200D) are not among them.
    """
    return character in _TURNING or unicodedata.category(character) in _DECEPTIVE


def visible(text: str) -> str:
    """The text with U+FFFD in place of deceptive characters, for names that must be shown but not obeyed."""
    return "".join("\N{REPLACEMENT CHARACTER}" if is_deceptive(character) else character for character in text)


def refuse_deceptive(text: str) -> str:
    """The text itself; raises ValueError (for pydantic) when it holds a deceptive character."""
    if found := next(filter(is_deceptive, text), None):
        raise ValueError(f"it holds the control character U+{ord(found):04X}; leave it out")
    return text
