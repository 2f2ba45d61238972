"""Links of pages outside docs/, and pages of docs/ that code and settings name, exist.

`make docs-check` holds the links of all pages in docs/.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

from tests.support.paths import REPOSITORY

LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]*))?\)")
NAMED_PAGE = re.compile(r"(?<![\w./-])docs/[\w./-]+\.md\b")
NAMING = (".py", ".toml", ".yaml", ".yml", ".tpl", ".txt", ".example", "Makefile", "Dockerfile")
BLOCK = re.compile(r"```.*?```", re.DOTALL)


def tracked(*patterns: str) -> list[str]:
    """Files that git tracks or would track."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (REPOSITORY / name).exists()]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def resolves(page: Path, target: str, anchor: str) -> bool:
    path = (page.parent / target).resolve() if target else page
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


def test_links_of_pages_outside_docs_resolve() -> None:
    pages = [name for name in tracked("*.md") if not name.startswith("docs/")]
    assert "README.md" in pages
    links = [
        (name, *link)
        for name in pages
        for link in LINK.findall(BLOCK.sub("", (REPOSITORY / name).read_text(encoding="utf-8")))
    ]
    broken = [
        (name, target, anchor) for name, target, anchor in links if not resolves(REPOSITORY / name, target, anchor)
    ]
    assert broken == []


def test_pages_that_files_name_exist() -> None:
    named = [
        (name, page)
        for name in tracked()
        if name.endswith(NAMING)
        for page in NAMED_PAGE.findall((REPOSITORY / name).read_text(encoding="utf-8"))
    ]
    assert [(name, page) for name, page in named if not (REPOSITORY / page).exists()] == []
