"""Names that are safe on any file system, and cells that no spreadsheet takes for a formula. Users' texts are data."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MOST_BYTES = 80  # of one part of a path: a whole member then fits the 255 of most file systems
UNLABELLED = "unlabelled"
_KEPT = " ._-"
_DEVICES = frozenset({"con", "prn", "aux", "nul"} | {f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10)})
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")


def safe_name(text: str) -> str:
    """One part of a path that says what `text` says: letters and digits of any script, spaces, `.`, `_` and `-`.

    Never empty, hidden, a climbing path or a device of Windows; at most 80 bytes of UTF-8.
    """
    kept = "".join(
        c if c in _KEPT or unicodedata.category(c)[0] in "LMN" else "_" for c in unicodedata.normalize("NFC", text)
    )
    kept = kept.lstrip(" .-").encode()[:MOST_BYTES].decode(errors="ignore").rstrip(" .")
    return f"{kept}_" if kept.partition(".")[0].lower() in _DEVICES or not kept else kept


def class_folders(labels: Iterable[str]) -> dict[str | None, str]:
    """A folder for each label, and for images without one (None). No two are alike, upper and lower case apart."""
    folders: dict[str | None, str] = {None: UNLABELLED}
    taken = {UNLABELLED}
    for label in dict.fromkeys(labels):
        folder = plain = safe_name(label)
        number = 1
        while folder.casefold() in taken:
            number += 1
            folder = f"{plain}~{number}"
        taken.add(folder.casefold())
        folders[label] = folder
    return folders


def cell(value: object) -> object:
    """What a CSV cell may hold: text that a spreadsheet would run as a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
