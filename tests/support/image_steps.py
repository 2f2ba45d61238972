"""A Dockerfile's steps, run without an engine: its stages one after the other, in a fresh folder instead of an image.

Knows the instructions that ours has. `/venv` and `/app` lie in the folder; the base image is the Python of these
tests; users and folders of the system (`useradd`, `/weights`) are not made.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
Instruction = tuple[str, str]


@dataclass
class Image:
    """What the steps left: files below `folder`, the environment, the command."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    user: str = "root"

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A shell command in the image's /app, with the image's environment and nothing of ours but pip's settings."""
        inherited = {
            name: value for name, value in os.environ.items() if name.startswith("PIP_") or name in ("PATH", "HOME")
        }
        return subprocess.run(
            self.inside(command),
            shell=True,
            cwd=self.folder / "app",
            env=inherited | {name: self.inside(value) for name, value in self.environment.items()} | environment,
            text=True,
            capture_output=True,
            timeout=1800,
        )

    def inside(self, text: str) -> str:
        """The image's paths as paths of this machine."""
        return re.sub(r"(?<![\w.])/(venv|app|weights)\b", lambda match: f"{self.folder}/{match[1]}", text)


def instructions(file: Path) -> list[Instruction]:
    """A Dockerfile's instructions in order, continued lines joined."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (keyword, operand.strip())
        for keyword, _, operand in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def stages(file: Path) -> dict[str, tuple[str, list[Instruction]]]:
    """Stage → what it is FROM, and its instructions; the ARGs before the first FROM are the stage `""`."""
    by_name: dict[str, tuple[str, list[Instruction]]] = {"": ("", [])}
    name = ""
    for keyword, operand in instructions(file):
        if keyword == "FROM":
            base, _, name = operand.partition(" AS ")
            by_name[name] = (base, [])
        else:
            by_name[name][1].append((keyword, operand))
    return by_name


def lineage(file: Path, target: str) -> Iterator[tuple[str, list[Instruction]]]:
    """The stages that a target stands on, first to last; a stage that is copied from comes before who copies."""
    stages_of = stages(file)
    base, stage_instructions = stages_of[target]
    if base in stages_of:
        yield from lineage(file, base)
    for keyword, operand in stage_instructions:
        copied = re.match(r"--from=(\S+)", operand) if keyword == "COPY" else None
        if copied:
            yield from lineage(file, copied[1])
    yield target, stage_instructions


def build(file: Path, target: str, arguments: Mapping[str, str], folder: Path) -> Image:
    """Take the steps of a target. Raises AssertionError with a failed step's output."""
    image = Image(folder)
    (folder / "app").mkdir(parents=True)
    values: dict[str, str] = {}
    for _, stage_instructions in lineage(file, target):
        for keyword, operand in stage_instructions:
            if keyword == "ARG":
                name, _, default = operand.partition("=")
                values[name] = arguments.get(name, values.get(name, default.strip('"')))
            elif keyword == "ENV":
                for pair in shlex.split(_filled(operand, values | {"PATH": "$PATH"})):
                    name, _, value = pair.partition("=")
                    image.environment[name] = value.replace("$PATH", os.environ["PATH"])
            elif keyword == "COPY" and not operand.startswith("--from"):
                *sources, goal = _filled(operand, values).split()
                for source in sources:
                    _copy(ROOT / source, folder / "app" / goal)
            elif keyword == "RUN" and not operand.startswith("useradd"):
                result = image.run(operand, **values)
                assert result.returncode == 0, f"{operand}\n{result.stdout[-2000:]}{result.stderr[-4000:]}"
            elif keyword == "CMD":
                image.command = re.findall(r'"([^"]*)"', operand)
            elif keyword == "USER":
                image.user = operand
    return image


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values[match[1]], text)


def _copy(source: Path, goal: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, goal, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        goal.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, goal)
