"""Execute the notebooks of docs/notebooks and keep their outputs in them.

    python -m docs.execute [NAME ...]          # all of them, or some by name: repair

Each notebook runs in a kernel and a folder of its own. The outputs are committed together with a digest of the code
that wrote them, so that a test notices code that was changed and not executed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent / "notebooks"
STARTUP_SECONDS = 600
CELL_SECONDS = 3000
NO_BARS = "ignore:IProgress not found"  # tqdm's warning where ipywidgets is missing
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def notebook_paths() -> dict[str, Path]:
    """The notebooks by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}


def read_notebook(path: Path) -> NotebookNode:
    """A notebook in the newest format. Raises nbformat's NotJSONError and ValidationError."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells of code, in their order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def code_digest(notebook: NotebookNode) -> str:
    """The SHA-256 of the code of all cells."""
    return hashlib.sha256(json.dumps([cell.source for cell in code_cells(notebook)]).encode()).hexdigest()


def execute(path: Path, folder: Path) -> NotebookNode:
    """A notebook with the outputs of its code, run in `folder`. Raises nbclient's CellExecutionError."""
    notebook = read_notebook(path)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        startup_timeout=STARTUP_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PYTHONWARNINGS": NO_BARS})
    notebook.metadata = nbformat.from_dict({**METADATA, "contrafact": {"code": code_digest(notebook)}})  # type: ignore[no-untyped-call]
    return notebook


def printed_text(notebook: NotebookNode) -> str:
    """What the cells printed and returned as text."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="notebooks; default: all")
    paths = notebook_paths()
    for name in parser.parse_args().names or paths:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(paths[name], Path(folder)), paths[name])  # type: ignore[no-untyped-call]
        print(f"{paths[name]}: {paths[name].stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
