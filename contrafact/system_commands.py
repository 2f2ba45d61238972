"""`contrafact serve`, `contrafact audit-judge`, and the operator commands: `keys`, `doctor`, `replay`, `housekeeping`.

The client does not import the gateway. These commands replace this process with a program of the gateway, which gets
the same arguments and streams and prints its own help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from contrafact.command_line import messages
from shared.package import module as own_module

OPERATOR_COMMANDS = {
    "keys": "API keys: create, list, revoke. This and the next three commands need the gateway's settings.",
    "doctor": "Check this deployment and report faults.",
    "replay": "Render a counterfactual again and compare it bit for bit.",
    "housekeeping": "Remove data that nothing refers to.",
}
PASS_THROUGH = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


def add_operator_commands(app: typer.Typer) -> None:
    """Add the commands `keys`, `doctor`, `replay` and `housekeeping`, and `audit-judge`."""
    app.command("audit-judge")(audit_judge)
    for name, sentence in OPERATOR_COMMANDS.items():
        app.command(name, help=sentence, context_settings=PASS_THROUGH)(operate)


def serve(
    directory: Annotated[Path, typer.Option(help="directory for all data")] = Path("contrafact-data"),
    port: Annotated[int, typer.Option(help="port on 127.0.0.1")] = 8000,
    profile: Annotated[str, typer.Option(help="a shipped profile, or the path of a TOML file")] = "tiny",
) -> None:
    """Run the whole system in one process on this machine."""
    replace_process("embedded", ["--directory", str(directory), "--port", str(port), "--profile", profile])


def audit_judge(
    profile: Annotated[str, typer.Argument(help="a profile with [evaluator.judge]: a shipped name, or a TOML file")],
    edits: Annotated[int, typer.Option(min=20, help="drawn edits, 21 questions each")] = 60,
    seed: Annotated[int, typer.Option(help="of the edits")] = 1,
    write: Annotated[bool, typer.Option("--write", help="put [evaluator.judge_audit] into the profile's file")] = False,
) -> None:
    """Measure how often a profile's vision-language judge errs, on edits of known answer."""
    more = ["--write"] if write else []
    replace_process("embedded.judge_audit", [profile, "--edits", str(edits), "--seed", str(seed), *more])


def operate(context: typer.Context) -> None:
    """Run the operator command of this name with the same arguments."""
    replace_process("gateway.commands", [str(context.info_name), *context.args])


def replace_process(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process with `python -m module`. Exits with code 2 where its package is not installed."""
    package = module.partition(".")[0]
    if find_spec(own_module(package)) is None:
        messages.print(f"error: this needs the package `{package}`, which is not installed here", style="red")
        raise typer.Exit(2)
    os.execv(sys.executable, [sys.executable, "-P", "-m", own_module(module), *arguments])
