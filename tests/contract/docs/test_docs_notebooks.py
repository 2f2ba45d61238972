"""The notebooks of the documentation: what is stored in them belongs to their code and renders on the site.

`tests/e2e/test_notebooks.py` executes them.
"""

from __future__ import annotations

import ast
import base64
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from docs.execute import code_cells, code_digest, execute, notebook_paths, printed_text, read_notebook
from docs.hooks import notebook_page, on_page_markdown
from tests.support.paths import REPOSITORY

MOST_BYTES = 200_000
MOST_LINES = {"first-finding": 10, "own-method": 30}
PNG = re.compile(r'src="data:image/png;base64,([A-Za-z0-9+/=]+)"')

every_notebook = pytest.mark.parametrize("name", notebook_paths())


@every_notebook
def test_the_outputs_are_those_of_the_code(name: str) -> None:
    notebook = read_notebook(notebook_paths()[name])
    cells = code_cells(notebook)
    assert notebook.metadata["contrafact"]["code"] == code_digest(notebook), "run `make notebooks`"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output.text for output in outputs if output.get("name") == "stderr"]


def test_changed_code_has_another_digest() -> None:
    notebook = read_notebook(notebook_paths()["first-finding"])
    before = code_digest(notebook)
    code_cells(notebook)[-1].source += "\n"
    assert code_digest(notebook) != before


@every_notebook
def test_it_is_as_small_as_it_says(name: str) -> None:
    path = notebook_paths()[name]
    assert path.stat().st_size < MOST_BYTES
    code = "\n".join(cell.source for cell in code_cells(read_notebook(path)))
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES.get(name, len(lines))


@every_notebook
def test_it_imports_the_public_package_alone(name: str) -> None:
    """An installed wheel has no other package of ours, and `_system` is private."""
    code = "\n".join(cell.source for cell in code_cells(read_notebook(notebook_paths()[name])))
    nodes = list(ast.walk(ast.parse(code)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in modules} - sys.stdlib_module_names == {"contrafact"}
    assert "_system" not in code


@every_notebook
def test_its_page_has_code_outputs_and_pictures(name: str) -> None:
    path = notebook_paths()[name]
    page = notebook_page(path)
    notebook = read_notebook(path)
    assert all(f"``````python\n{cell.source}\n``````" in page for cell in code_cells(notebook))
    assert all(cell.source in page for cell in notebook.cells if cell.cell_type == "markdown")
    pictures = PNG.findall(page)
    assert pictures
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert f"notebooks/{name}.md" in (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")


@every_notebook
def test_its_links_lead_somewhere(name: str) -> None:
    path = notebook_paths()[name]
    text = "\n".join(cell.source for cell in read_notebook(path).cells if cell.cell_type == "markdown")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\((?![a-z]+:)([^)]+)\)", text)]
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_every_kind_of_output_has_its_form(tmp_path: Path) -> None:
    path = tmp_path / "kinds.ipynb"
    path.write_text(
        '{"cells": [{"cell_type": "code", "source": ["1"], "outputs": ['
        '{"output_type": "stream", "text": ["two\\n", "<lines>\\n"]},'
        '{"output_type": "display_data", "data": {"image/png": "iVBORw0=\\n", "text/plain": ["<Figure>"]}},'
        '{"output_type": "execute_result", "data": {"text/html": ["<b>3</b>"], "text/plain": ["3"]}}]}]}'
    )
    page = notebook_page(path)
    assert "two\n&lt;lines&gt;</pre>" in page
    assert 'src="data:image/png;base64,iVBORw0="' in page
    assert "<b>3</b>" in page
    assert "<Figure>" not in page


@pytest.mark.parametrize("name", ["how-to/python.md", "notebooks/repair.md"])
def test_a_link_to_a_notebook_leads_to_its_page(name: str) -> None:
    config = MkDocsConfig()
    page = Page(None, File(name, src_dir=None, dest_dir="site", use_directory_urls=True), config)
    target = os.path.relpath("notebooks/first-finding.ipynb", os.path.dirname(name))
    files = Files([File("notebooks/first-finding.md", src_dir=None, dest_dir="site", use_directory_urls=True)])
    markdown = on_page_markdown(f"[first]({target})", page, config, files)
    assert markdown == f"[first]({target.replace('.ipynb', '.md')})"


def written(path: Path, source: str) -> Path:
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), path)  # type: ignore[no-untyped-call]
    return path


def test_execution_keeps_outputs_and_the_digest_of_their_code(tmp_path: Path) -> None:
    source = "from pathlib import Path\n_ = Path('here').write_text('')\nprint('out')\n3"
    notebook = execute(written(tmp_path / "small.ipynb", source), tmp_path)
    assert printed_text(notebook).split() == ["out", "3"]
    assert notebook.metadata["contrafact"]["code"] == code_digest(notebook)
    assert (tmp_path / "here").exists()


def test_code_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(written(tmp_path / "broken.ipynb", "1 / 0"), tmp_path)
