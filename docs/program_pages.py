"""The generated pages on settings, commands, shipped profiles and types of problems. Imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command

from contrafact.cli import app
from gateway.commands import app as operator_app
from gateway.settings import Settings
from shared.problems import problem_types
from shared.profiles.profile import load_profile, shipped_profiles
from shared.profiles.weights import Server, Weights
from shared.service.settings import ServiceSettings

CONNECTION_OPTIONS = {"--json", "--url", "--api-key"}  # of nearly every command; reference/cli.md explains them once
TRAINER_SETTINGS = ("profile", "device", "threads", "max_image_pixels", "metrics_port")


def row(*cells: str) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def settings_page() -> str:
    """Every setting of gateway, worker and model services, with its default."""
    return "\n".join(_settings()) + "\n"


def commands_page() -> str:
    """Every command of `contrafact`, with its arguments and options."""
    return "\n".join(_commands()) + "\n"


def profiles_page() -> str:
    """The weights and servers of every shipped profile."""
    return "\n".join(_profiles()) + "\n"


def problems_page() -> str:
    """Every type of problem that a service can answer, with its status and remedy."""
    return "\n".join(_problems()) + "\n"


def _problems() -> Iterator[str]:
    yield "# Problem types\n"
    yield "Find the remedy of an [error](http-api.md) by its `type`. Generated from the code by `python -m"
    yield "docs.generate`. The errors of the model services are in their logs, and as reasons in the progress and"
    yield "`failures` of a job. [Solve a problem](../how-to/troubleshooting.md) has the symptoms.\n"
    yield "| type | status | what happened | what to do |"
    yield "|---|---|---|---|"
    for problem in problem_types():
        cause, remedy, *_ = inspect.cleandoc(problem.__doc__ or "").split("\n\n")
        yield row(f"`{problem.name}`", str(problem.status), cause, remedy)


def _profiles() -> Iterator[str]:
    yield "# Weights of the shipped profiles\n"
    yield "Look up what a [profile](profiles.md) loads. Generated from the profiles by `python -m docs.generate`. A"
    yield "server runs beside the services. GB are the weights'; [memory](profiles.md#memory) has what comes on top.\n"
    for name in shipped_profiles():
        profile = load_profile(name)
        yield f"## `{name}`\n"
        yield f"{profile.profile.description}.\n"
        yield "| table | weights | type | GB | licence |"
        yield "|---|---|---|---|---|"
        for table, source in _sources(profile, ""):
            weights, kind = (source.model, "server") if isinstance(source, Server) else (source.id, source.dtype)
            yield row(f"`{table}`", f"`{weights}`", kind, f"{source.gigabytes:g}", source.licence)
        yield ""


def _sources(value: object, table: str) -> Iterator[tuple[str, Weights | Server]]:
    """Every set of weights and every server below a table of a profile, with the name of its table."""
    if isinstance(value, Weights | Server):
        yield table, value
        return
    if isinstance(value, BaseModel):
        below: dict[Any, object] = {name: getattr(value, name) for name in type(value).model_fields}
    elif isinstance(value, dict):
        below = value
    else:
        below = dict(enumerate(value)) if isinstance(value, list) else {}
    for name, part in below.items():
        yield from _sources(part, f"{table}.{name}".removeprefix("."))


def _settings() -> Iterator[str]:
    yield "# Settings\n"
    yield "Set these environment variables before you start a process; each is read once. The embedded system needs"
    yield "none. A language server may also need the API key that the [profile](profiles.md) names. Generated from the"
    yield "code by `python -m docs.generate`.\n"
    yield "More on [connections to Postgres](../how-to/deployment.md#connections-to-postgres),"
    yield "[keys](../how-to/operations.md#keys), [probes and metrics](../how-to/operations.md#what-to-watch),"
    yield "[large images](http-api.md#large-images),"
    yield "[failing services](../explanation/architecture.md#who-is-at-fault),"
    yield "[types of arithmetic](services.md#arithmetic), [GPU settings](services.md#gpu-settings),"
    yield "[hung batches](../how-to/operations.md#a-device-that-fails) and [uploaded"
    yield "models](../how-to/models-under-test.md#what-an-uploaded-model-may-use).\n"
    yield "## Gateway and worker\n"
    yield from _variables(Settings)
    yield "## Model services\n"
    yield from _variables(ServiceSettings)
    yield "## Trainer of repairs\n"
    shared = ", ".join(f"`CONTRAFACT_{name.upper()}`" for name in TRAINER_SETTINGS)
    yield "`python -m evaluator_service.repair_worker` reads `CONTRAFACT_BROKER_URL`, the variables of the object"
    yield f"store, {shared}. `CONTRAFACT_CACHED_BYTES` (2147483648)"
    yield "bounds the decoded images that it keeps between steps (268435456 in an embedded system)."


def _variables(settings: type[BaseSettings]) -> Iterator[str]:
    """The table of the settings of a class. Raises ValueError for one that has no description."""
    yield "| variable | default | what it is |"
    yield "|---|---|---|"
    for name, field in settings.model_fields.items():
        if not field.description:
            raise ValueError(f"the setting {name} of {settings.__name__} lacks a docstring below it")
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else str(field.default)
        yield row(f"`CONTRAFACT_{name.upper()}`", f"`{default}`" if default else "", field.description)
    yield ""


def _commands() -> Iterator[str]:
    yield "# Commands and options\n"
    yield "Look up a command of `contrafact`. Generated from the code by `python -m docs.generate`."
    yield "[Command line](cli.md) has output, exit codes, and the options `--json`, `--url` and `--api-key`, which most"
    yield "commands take.\n"
    operators = _tree(get_command(operator_app), ["contrafact"])
    public = [(words, command) for words, command in _tree(get_command(app), ["contrafact"]) if not _forwards(command)]
    for words, command in [*public, *operators]:
        yield f"## `{' '.join(words)}`\n"
        yield f"{command.help or ''}\n"
        yield from _parameters(command)


def _tree(command: object, words: list[str]) -> Iterator[tuple[list[str], TyperCommand]]:
    """All commands below one, with the words that call them."""
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from _tree(below, [*words, name])
    elif isinstance(command, TyperCommand):
        yield words, command


def _forwards(command: TyperCommand) -> bool:
    """Whether another program reads the arguments."""
    return bool(command.context_settings.get("ignore_unknown_options"))


def _parameters(command: TyperCommand) -> Iterator[str]:
    rows = []
    for parameter in command.params:
        if set(parameter.opts) & CONNECTION_OPTIONS:
            continue
        argument = isinstance(parameter, TyperArgument)
        name = (parameter.metavar or str(parameter.name).upper()) if argument else parameter.opts[0]
        if not argument and parameter.metavar:
            name += f" {parameter.metavar}"
        default = "required" if parameter.required else _default(parameter.default)
        rows.append(row(f"`{name}`", default, getattr(parameter, "help", None) or ""))
    if rows:
        yield "| argument | default | |"
        yield "|---|---|---|"
        yield from rows
        yield ""


def _default(value: object) -> str:
    return "" if value is None or value is False or value == "" else f"`{value}`"
