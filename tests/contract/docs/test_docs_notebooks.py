"""The notebooks of the documentation: their outputs belong to their code, without errors, and render on the site.

`tests/e2e/test_notebooks.py` executes them.
"""

from __future__ import annotations

from pathlib import Path

from docs.execute import code_cells, code_digest, notebook_paths, read_notebook
from docs.hooks import notebook_page


def test_the_outputs_are_those_of_the_code_and_no_errors() -> None:
    assert notebook_paths()
    for name, path in notebook_paths().items():
        notebook = read_notebook(path)
        cells = code_cells(notebook)
        assert notebook.metadata["contrafact"]["code"] == code_digest(notebook), f"{name}: run `make notebooks`"
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), name
        outputs = [output for cell in cells for output in cell.outputs]
        assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}, name
        assert [output.text for output in outputs if output.get("name") == "stderr"] == [], name


def test_every_kind_of_output_has_its_form(tmp_path: Path) -> None:
    path = tmp_path / "kinds.ipynb"
    path.write_text(
        '{"cells": [{"cell_type": "code", "source": ["1"], "outputs": ['
        '{"output_type": "stream", "text": ["two\\n", "<lines>\\n"]},'
        '{"output_type": "display_data", "data": {"image/png": "iVBORw0=\\n", "text/plain": ["<Figure>"]}},'
        '{"output_type": "execute_result", "data": {"text/html": ["<b>3</b>"], "text/plain": ["3"]}}]}]}'
    )
    page = notebook_page(path)
    assert "``````python\n1\n``````" in page
    assert "two\n&lt;lines&gt;</pre>" in page
    assert 'src="data:image/png;base64,iVBORw0="' in page
    assert "<b>3</b>" in page
    assert "<Figure>" not in page
