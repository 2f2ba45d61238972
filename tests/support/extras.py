"""Python with the packages of one extra only, as an image or a venv of its own has them, without installing anything.

What the extra does not lead to is hidden: it cannot be imported or looked up, by subprocesses neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

_HIDING = """
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset({hidden})


class Visible(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)


sys.meta_path[:] = [Visible if finder is PathFinder else finder for finder in sys.meta_path]
"""


def packages(extra: str) -> set[str]:
    """Names of the packages that `pip install .[extra]` leads to, as far as they are installed here."""
    lines = [*PROJECT["dependencies"], *EXTRAS[extra]]
    waiting = [(Requirement(line), "") for line in lines]
    names: set[tuple[str, str]] = set()
    while waiting:
        requirement, of_extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of_extra}):
            continue
        for option in ("", *requirement.extras):
            if (name, option) in names:
                continue
            names.add((name, option))
            waiting += [(Requirement(line), option) for line in _requirements(name, option)]
    return {name for name, _ in names} - {"contrafact"}


def _requirements(name: str, option: str) -> list[str]:
    if name == "contrafact":
        return EXTRAS.get(option, [])
    try:
        return requires(name) or []
    except PackageNotFoundError:  # for another platform
        return []


def environment(extra: str, folder: Path, without: str = "") -> dict[str, str]:
    """Environment variables under which Python sees our code, its own, and the extra's packages but for one.

    Writes to `folder`.
    """
    allowed = (packages(extra) | {"contrafact"}) - {without}
    owners = packages_distributions().items()
    hidden = sorted(top for top, names in owners if not {canonicalize_name(name) for name in names} & allowed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_HIDING.format(hidden=json.dumps(hidden)), encoding="utf-8")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def run(extra: str, code: str, folder: Path, without: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that sees the extra's packages only, and these environment variables."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(extra, folder, without), **variables},
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=600,
    )
