"""What MkDocs does beyond its own: links to the code lead to listings of it, and nothing is loaded from elsewhere.

A page in `docs/` links to a module, a result or a page elsewhere in the repository by its relative path, so the link
works in the repository too. On the site each such file is a page (or a download) under `source/`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!#|[a-z]+:)([^)\s#]*)(#[^)\s]*)?(?=\))")
EXTERNAL = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every decision into the navigation, by name."""
    pages = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    for part in config.nav or []:
        for entry in part.get("Explanation", []):
            if "Decisions" in entry:
                entry["Decisions"] = [f"decisions/{name}" for name in pages]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what the pages link to outside of docs/, and what those pages link to in turn."""
    waiting = [Path("docs") / file.src_uri for file in files.documentation_pages()]
    added: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for target in _targets(page):
            if target.parts[0] != "docs" and target not in added and (ROOT / target).exists():
                added.add(target)
                files.append(_listed(target, config))
                if target.suffix == ".md":
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the listings, which the search leaves out."""
    if page.file.src_uri.startswith("source/"):
        page.meta["search"] = {"exclude": True}
    here = _place(page.file)
    start = os.path.dirname(page.file.src_uri)

    def lead(link: re.Match[str]) -> str:
        target = _resolved(here, link[1])
        if target is None or not (ROOT / target).exists():
            return link[0]
        inside = target.parts[0] == "docs"
        name = target.relative_to("docs").as_posix() if inside else _name(target)
        return os.path.relpath(name, start or ".") + (link[2] or "")

    return LINK.sub(lead, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load something from another host."""
    if external := EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {external[0]}")
    return output


def _place(file: File) -> Path:
    """Where a page of the site lies in the repository."""
    if file.src_uri.startswith("source/"):
        return Path(file.src_uri.removeprefix("source/"))
    return Path("docs") / file.src_uri


def _targets(page: Path) -> list[Path]:
    text = (ROOT / page).read_text(encoding="utf-8")
    resolved = (_resolved(page, link[1]) for link in LINK.finditer(text))
    return [target for target in resolved if target is not None]


def _resolved(page: Path, link: str) -> Path | None:
    """The path in the repository that a link of a page there leads to; None where it leads out of it."""
    target = Path(os.path.normpath(page.parent / link))
    return None if target.is_absolute() or target.parts[:1] in [("..",), ()] else target


def _name(target: Path) -> str:
    """What the listing of a file is called on the site."""
    if target.suffix in (".md", ".json", ".png"):
        return f"source/{target.as_posix()}"
    return f"source/{target.as_posix()}.md"


def _listed(target: Path, config: MkDocsConfig) -> File:
    path = ROOT / target
    options: dict[str, Any] = {"abs_src_path": str(path)}
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(("_", ".")))
        options = {"content": f"# {target}\n\n" + "".join(f"* `{name}`\n" for name in names)}
    elif _name(target).endswith(f"{target.name}.md"):
        code = path.read_text(encoding="utf-8")
        options = {"content": f"# {target}\n\n``````{LANGUAGES.get(path.suffix, 'text')}\n{code}\n``````\n"}
    return File.generated(config, _name(target), **options)
