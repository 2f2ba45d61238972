"""Names that are safe on any file system."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

MOST_BYTES = 80  # of a path component, so that a member's path fits the 255 bytes of most file systems
UNLABELLED = "unlabelled"
_PUNCTUATION = " ._-"
_DEVICES = frozenset({"con", "prn", "aux", "nul"} | {f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10)})


def safe_name(text: str) -> str:
    """`text` as a path component: letters and digits of any script, spaces, `.`, `_` and `-`; the rest becomes `_`.

    The name is not empty, hidden, `..` or a device of Windows, and has at most 80 bytes of UTF-8.
    """
    name = "".join(
        c if c in _PUNCTUATION or unicodedata.category(c)[0] in "LMN" else "_"
        for c in unicodedata.normalize("NFC", text)
    )
    name = name.lstrip(" .-").encode()[:MOST_BYTES].decode(errors="ignore").rstrip(" .")
    return f"{name}_" if name.partition(".")[0].lower() in _DEVICES or not name else name


def class_folders(labels: Iterable[str]) -> dict[str | None, str]:
    """A folder for each label, and for images without one (None). Folders differ in more than upper and lower case."""
    folders: dict[str | None, str] = {None: UNLABELLED}
    used = {UNLABELLED}
    for label in dict.fromkeys(labels):
        folder = plain = safe_name(label)
        number = 1
        while folder.casefold() in used:
            number += 1
            folder = f"{plain}~{number}"
        used.add(folder.casefold())
        folders[label] = folder
    return folders
