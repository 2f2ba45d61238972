"""Links to Markdown and source files lead somewhere, in the documentation, in code and in settings."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

ROOT = REPOSITORY
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]*))?\)")
NAMED_PAGE = re.compile(r"(?<![\w./-])docs/[\w./-]+\.md\b")
HISTORY = "CHANGELOG.md"  # names pages as they were called


def tracked(*patterns: str) -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if name != HISTORY and (ROOT / name).exists()]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and GitHub make them."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("name", tracked("*.md"))
def test_links_resolve(name: str) -> None:
    page = ROOT / name
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in LINK.findall(prose):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name} links to {target}, which does not exist"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name} links to {target}#{anchor}, and there is no such heading"


def test_pages_that_files_name_exist() -> None:
    suffixes = (".py", ".toml", ".yaml", ".yml", ".tpl", ".txt", ".example", "Makefile", "Dockerfile")
    for name in tracked():
        if name.endswith(suffixes):
            for page in NAMED_PAGE.findall((ROOT / name).read_text(encoding="utf-8")):
                assert (ROOT / page).exists(), f"{name} names {page}, which does not exist"
