"""Text and tables as GitHub-flavoured Markdown. What a user wrote (class names, file names) stays text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# A forge looks for mentions, issues and links in the text of the rendered page, so a backslash does not stop it.
_LIVE = (
    r"@|[#!$%&~](?=\d)|(?<=\bgh)-(?=\d)"
    r"|(?<=http):(?=//)|(?<=https):(?=//)|(?<=ftp):(?=//)|(?<=mailto):|(?<=xmpp):|(?<=www)\."
)
_COMMIT = r"(?<![^\W_])[0-9a-f]{7,}(?![^\W_])"  # the beginning of a commit's digest
_MARKS = re.compile(rf"(?P<live>{_LIVE})|(?P<commit>{_COMMIT})|[\\`*_{{}}\[\]<>#|~&]", re.IGNORECASE)


def plain(text: str) -> str:
    """Text on one line, without meaning as Markdown or HTML, and without mentions and links of a forge."""
    return _MARKS.sub(_inert, " ".join(text.split()))


def _inert(mark: re.Match[str]) -> str:
    if mark["commit"]:
        return "".join(f"<span>{piece}</span>" for piece in re.findall(".{1,6}", mark[0]))  # a forge looks for seven
    return f"<span>{mark[0]}</span>" if mark["live"] else f"\\{mark[0]}"


def code(text: str) -> str:
    """Text on one line as a code span, also inside a table. Backticks in it become apostrophes."""
    line = " ".join(text.split()).replace("`", "'").replace("|", r"\|")
    return f"`{line}`" if line else ""


def sentence(text: str) -> str:
    """A sentence whose parts between backticks are code, as those of findings and breaches."""
    return "".join(code(part) if index % 2 else _around(part) for index, part in enumerate(text.split("`")))


def _around(part: str) -> str:
    """`plain`, with the spaces at both ends."""
    before, after = " " * part.startswith(" "), " " * part.endswith(" ")
    return f"{before}{plain(part)}{after}" if part.strip() else before


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> list[str]:
    """The lines of a table. Cells are Markdown already; the last `numbers` columns are aligned to the right."""
    rules = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (head, rules, *rows)]
