"""Refusals on a terminal name options of the command line, which exist."""

from __future__ import annotations

import re

from typer.main import get_command

from contrafact.cli import app
from contrafact.command_line import _OPTIONS, in_options
from gateway.intake.intake import MAP_LABELS, WITHOUT_LABELS


def test_advice_names_options_that_exist() -> None:
    group = get_command(app)
    commands = [group.commands["submit"], group.commands["models"].commands["add"]]  # type: ignore[attr-defined]
    options = {option for command in commands for parameter in command.params for option in parameter.opts}
    named = {option for words in _OPTIONS.values() for option in re.findall(r"--[\w-]+", words)}
    assert named <= options
    sentence = in_options(f"{MAP_LABELS}, or {WITHOUT_LABELS} to test without labels")
    assert sentence == "Map them with `--label-map LABEL=CLASS`, or give `--no-labels` to test without labels"
