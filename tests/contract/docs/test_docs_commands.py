"""Commands in the documentation exist: `contrafact` with its options, `python -m` modules, `make` targets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from contrafact.cli import app
from tests.support.paths import REPOSITORY

PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
HISTORY = "CHANGELOG.md"  # names commands as they were called
CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
COMMAND = re.compile(r"(?:^|exec gateway |run: )(?:\$ )?(?:\.venv/bin/)?contrafact ([a-z].*)")
ROOT_COMMAND = get_command(app)


def code(page: Path) -> Iterator[str]:
    """The lines of the page's code, continued ones joined, without comments."""
    for block, span in CODE.findall(page.read_text(encoding="utf-8")):
        for line in (block or span).replace("\\\n", " ").splitlines():
            yield re.sub(r"(^|\s)#.*", "", line)


LINES = [line for page in PAGES if page.name != HISTORY for line in code(page)]


def resolve(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """The command that the words name, and the words after it."""
    command = ROOT_COMMAND
    while words and isinstance(command, TyperGroup) and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert isinstance(command, TyperCommand | TyperGroup)
    return command, words


def fault(text: str) -> str:
    """What is wrong with a call of `contrafact`; empty if nothing is."""
    words = re.split(r"[\s,]+", text.split("|")[0])
    command, arguments = resolve(words)
    if command is ROOT_COMMAND:
        return f"there is no command `contrafact {words[0]}`"
    if command.context_settings.get("ignore_unknown_options"):  # another program reads them
        return ""
    options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    named = {word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)}
    return f"`contrafact {text}` has no {', '.join(sorted(named - options))}" if named - options else ""


def test_commands_and_their_options_exist() -> None:
    commands = {match[1].strip() for line in LINES if (match := COMMAND.search(line))}
    assert commands
    assert [found for text in sorted(commands) if (found := fault(text))] == []


def test_modules_exist() -> None:
    modules = {name.rstrip(".") for line in LINES for name in re.findall(r"python3? -m ([\w.]+)", line)}
    assert modules
    assert [module for module in sorted(modules) if find_spec(module) is None] == []


def test_make_targets_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    called = [name for line in LINES for name in re.findall(r"^(?:\$ )?make ((?:[a-z-]+ ?)+)$", line)]
    targets = {target for names in called for target in names.split()}
    assert targets
    assert targets - set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) == set()
