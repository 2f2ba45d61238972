"""Run one source image through the embedded system of a checkout, and print the files of all functions in call order.

`research.one_image` starts it as a script, so that every project module comes from that checkout:

    PYTHONPATH=TREE python -P traced_image.py TREE PICTURE LABEL

The output is a JSON list of paths below the checkout: for each function of the product, the file that it is in, in the
order of first calls between the request for the job and the reading of its report, in all threads.
"""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

import httpx

PRODUCT = ("contrafact", "gateway", "caption_service", "llm_service", "diffusion_service", "evaluator_service")
PACKAGES = (*PRODUCT, "shared", "embedded")
PATIENCE = 900.0  # seconds


class FirstCalls:
    """The files of functions in the order of their first calls. `restart` forgets what was called before."""

    def __init__(self, tree: Path) -> None:
        self._folders = tuple(f"{tree / package}{os.sep}" for package in PACKAGES)
        self._tree = tree
        self._codes: dict[CodeType, None] = {}

    def record(self, frame: FrameType, event: str, _: object) -> None:
        """The profiler: note the function of a call."""
        if event == "call" and frame.f_code not in self._codes:
            self._codes[frame.f_code] = None

    def restart(self) -> None:
        """Begin the order anew."""
        self._codes = {}

    @property
    def files(self) -> list[str]:
        """The file of each function of the product; bodies of modules, comprehensions and lambdas are no functions."""
        functions = [code for code in list(self._codes) if not code.co_name.startswith("<")]
        return [
            str(Path(code.co_filename).relative_to(self._tree))
            for code in functions
            if code.co_filename.startswith(self._folders)
        ]


def main() -> None:
    """Trace one image, and print its files."""
    tree, picture, label = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3]
    calls = FirstCalls(tree)
    threading.setprofile(calls.record)
    sys.setprofile(calls.record)
    run_embedded = importlib.import_module("embedded.run").run_embedded
    with TemporaryDirectory() as directory, run_embedded(Path(directory)) as system:
        _wait_until_ready(system.service_urls)
        calls.restart()
        _run_job(system.base_url, Path(directory), picture, label)
        files = calls.files
        sys.setprofile(None)
        print(json.dumps(files), flush=True)
        os._exit(0)  # threads of the system may still compute


def _wait_until_ready(urls: Mapping[str, str]) -> None:
    """Wait until all model services have loaded their weights."""
    until = time.monotonic() + PATIENCE
    for name, url in urls.items():
        while not _is_ready(url):
            if time.monotonic() > until:
                raise TimeoutError(f"{name} was not ready within {PATIENCE:.0f} seconds")
            time.sleep(0.5)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _run_job(url: str, directory: Path, picture: Path, label: str) -> None:
    """One job of one image. Its state is read from the database, because a question to the gateway would be traced."""
    manifest = f"file,label\n{picture.name},{label}\n".encode()
    files = {
        "images": (picture.name, picture.read_bytes(), "image/png"),
        "manifest": ("labels.csv", manifest, "text/csv"),
    }
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        posted = client.post("/jobs", files=files, data={"task": "classify the vehicle"}).raise_for_status()
        until = time.monotonic() + PATIENCE
        while (state := _state(directory)) == "running":
            if time.monotonic() > until:
                raise TimeoutError(f"the job was not done within {PATIENCE:.0f} seconds")
            time.sleep(0.2)
        if state != "done":
            raise RuntimeError(f"the job ended as {state}")
        client.get(f"{posted.headers['Location']}/report").raise_for_status()


def _state(directory: Path) -> str:
    with sqlite3.connect(f"file:{directory / 'contrafact.db'}?mode=ro", uri=True) as database:
        return str(database.execute("SELECT state FROM jobs").fetchone()[0])


if __name__ == "__main__":
    main()
