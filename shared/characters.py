"""Find characters that make a text look like another (controls, line breaks, changes of the writing direction).

Also those that a database cannot hold (U+0000, and half of a surrogate pair), and those that begin a formula.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

_DECEPTIVE = frozenset({"Cc", "Cs", "Zl", "Zp"})  # controls, surrogates, line and paragraph separators
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # of a spreadsheet, as the first character
_DIRECTION_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Soft hyphen, zero-width space, word joiner, byte order mark, invisible operators, fillers, annotation marks.
_INVISIBLE = frozenset(
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2060\u2061\u2062\u2063\u2064\u206a\u206b\u206c\u206d\u206e\u206f"
    "\u3164\ufeff\uffa0\ufff9\ufffa\ufffb"
)
# Variants of a character, mostly not seen, and tags; but for U+FE0E and U+FE0F, which emoji need.
_VARIANTS = re.compile("[\ufe00-\ufe0d\U000e0000-\U000e01ef]")
_BRAILLE_BLANK = "\u2800"
_NOT_SEEN = re.compile("[\ufe00-\ufe0f\u180b-\u180d\u180f\U000e0100-\U000e01ef]")  # beside format characters


def is_deceptive(character: str) -> bool:
    """Whether a character is invisible, breaks the line, or changes how its neighbours are shown.

    Marks that right-to-left and joined scripts need (U+200C to U+200F, U+061C) are allowed.
    """
    if character in _DIRECTION_CONTROLS or character in _INVISIBLE or _VARIANTS.match(character):
        return True
    return unicodedata.category(character) in _DECEPTIVE


def visible(text: str) -> str:
    """Replace deceptive characters by U+FFFD, for names that must be shown without their effect."""
    return "".join("\N{REPLACEMENT CHARACTER}" if is_deceptive(character) else character for character in text)


def refuse_deceptive(text: str) -> str:
    """Return the text; raises ValueError (for pydantic) if it holds a deceptive character."""
    if deceptive := next(filter(is_deceptive, text), None):
        raise ValueError(f"it holds the control character U+{ord(deceptive):04X}; leave it out")
    return text


def identity(name: str) -> str:
    """What names have in common that look the same: without case, widths, spaces around and marks that are not seen."""
    shown = "".join(char for char in _NOT_SEEN.sub("", name) if unicodedata.category(char) != "Cf")
    return " ".join(unicodedata.normalize("NFKC", shown).casefold().replace(_BRAILLE_BLANK, " ").split())


def csv_cell(value: T) -> T | str:
    """A safe CSV cell: an apostrophe precedes text that a spreadsheet would run as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def is_storable(value: object) -> bool:
    """Whether no text in nested JSON holds a character that Postgres or UTF-8 cannot hold."""
    match value:
        case str():
            return _UNSTORABLE.search(value) is None
        case Mapping():
            return all(is_storable(key) and is_storable(member) for key, member in value.items())
        case list() | tuple():
            return all(map(is_storable, value))
        case _:
            return True


def storable(text: str) -> str:
    """Replace the characters that cannot be stored by U+FFFD."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
