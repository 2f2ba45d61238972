"""What MkDocs does beyond its own: links to the code lead to listings of it, and nothing is loaded from elsewhere.

A page in `docs/` links to a module, a result or a page elsewhere in the repository by its relative path, so the link
works in the repository too. On the site each such file is a page (or a download) under `source/`. A notebook is a page
too, with the outputs that are stored in it.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!#|[a-z]+:)([^)\s#]*)(#[^)\s]*)?(?=\))")
EXTERNAL = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
COPIED = (".md", ".json", ".png", ".webp")  # other files are listed as code
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
    """Add the notebooks as pages, and what the pages link to outside of docs/, and what those link to in turn."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = notebook_page(Path(notebook.abs_src_path or ""))
        files.append(File.generated(config, _page_of(notebook.src_uri), content=content))
    waiting = [_place(file) for file in files.documentation_pages()]
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
    """Lead links that leave docs/ to the listings, which the search leaves out.

    Raises PluginError for a link to a file of the repository that is not on the site.
    """
    if page.file.src_uri.startswith("source/"):
        page.meta["search"] = {"exclude": True}
    folder = _place(page.file)
    if not (ROOT / folder).exists():
        return markdown  # a listing of code
    start = os.path.dirname(page.file.src_uri)

    def lead(link: re.Match[str]) -> str:
        target = _resolved(folder, link[1])
        if target is None or not (ROOT / target).exists():
            return link[0]
        inside = target.parts[0] == "docs"
        name = _page_of(target.relative_to("docs").as_posix()) if inside else _name(target)
        file = files.get_file_from_path(name)
        absent = file is None or file.inclusion is InclusionLevel.EXCLUDED
        if absent and not (inside and (ROOT / target).is_dir()):
            raise PluginError(f"{page.file.src_uri} links to {link[1]}, which is not on the site")
        return os.path.relpath(name, start or ".") + (link[2] or "")

    return LINK.sub(lead, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load something from another host."""
    if external := EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {external[0]}")
    return output


def notebook_page(path: Path) -> str:
    """A notebook in Markdown: its text, its code, and of each output the richest form that a page can show."""
    parts: list[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(f"``````python\n{source}\n``````" if cell["cell_type"] == "code" else source)
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join([*parts, f'<a href="../{path.name}" download>Download this notebook</a>', ""])


def _output(output: Mapping[str, Any]) -> str:
    """One output of a cell, whose text nbformat stores as lines."""
    data = {kind: "".join(lines) for kind, lines in output.get("data", {"text/plain": output.get("text", "")}).items()}
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "image/png" in data:
        return f'<img alt="output of the code above" src="data:image/png;base64,{data["image/png"].strip()}">'
    return f'<pre class="output">{html.escape(data["text/plain"].rstrip())}</pre>'


def _page_of(name: str) -> str:
    """What a file of docs/ is called on the site: a notebook is a page."""
    return re.sub(r"\.ipynb$", ".md", name)


def _place(file: File) -> Path:
    """Where a page of the site lies in the repository."""
    if file.src_uri.startswith("source/"):
        return Path(file.src_uri.removeprefix("source/"))
    page = Path("docs") / file.src_uri
    notebook = page.with_suffix(".ipynb")
    return notebook if (ROOT / notebook).exists() else page


def _targets(page: Path) -> list[Path]:
    text = (ROOT / page).read_text(encoding="utf-8")
    resolved = (_resolved(page, link[1]) for link in LINK.finditer(text))
    return [target for target in resolved if target is not None]


def _resolved(page: Path, link: str) -> Path | None:
    """The path in the repository that a link of a page there leads to; None where it leads out of it."""
    target = Path(os.path.normpath(page.parent / link))
    return None if target.is_absolute() or target.parts[:1] in [("..",), ()] else target


def _name(target: Path) -> str:
    """What the listing of a file is called on the site, which has no files and folders that begin with a dot."""
    name = "/".join(part.lstrip(".") for part in target.parts)
    return f"source/{name}" if target.suffix in COPIED else f"source/{name}.md"


def _listed(target: Path, config: MkDocsConfig) -> File:
    path = ROOT / target
    options: dict[str, Any] = {"abs_src_path": str(path)}
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(("_", ".")))
        options = {"content": f"# {target}\n\n" + "".join(f"* `{name}`\n" for name in names)}
    elif target.suffix not in COPIED:
        code = path.read_text(encoding="utf-8")
        options = {"content": f"# {target}\n\n``````{LANGUAGES.get(path.suffix, 'text')}\n{code}\n``````\n"}
    return File.generated(config, _name(target), **options)
