"""Options, output and exit codes that all commands of `contrafact` share.

Refusals of the API in words of the command line, whose options are the API's fields.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console, RenderableType

from contrafact.client import Client, Unreachable
from shared.problems import NotReady, Problem, validation_sentence

# `gateway.web.form_fields` does the same for the job form. Longer advice comes first.
_OPTIONS = {
    'send `"ground_truth": "none"`': "give `--no-labels`",
    "the spec does not say what they mean; give `masks` in it": "nothing says what they mean; give `--masks FILE`",
    "the spec does not say what the masks mean: give `masks`": "nothing says what the masks mean: give `--masks FILE`",
    "the spec announces boxes, but none was sent: add": "there are no boxes: give `--boxes FILE_OR_FOLDER` with",
    "the spec does not say how to count them; give `boxes` in it": "give them as `--boxes FILE_OR_FOLDER`, too",
    "the spec does not say how to compare answers; give `questions` in it": "name a model that answers questions",
    "give `preprocessing` in the spec": "give `--preprocessing FILE`",
    "give `classes`, a list in their order": "give `--classes FILE`, a line for each in their order",
    "name `models`": "give `--model NAME`",
    "name `values`": "give `--value FACTOR=VALUE`",
    "send it as the part `manifest`": "give `--labels FILE`",
    "`label_map`": "`--label-map LABEL=CLASS`",
    "`masks.void`": "`void` of `--masks`",
    "`masks.classes`": "`classes` of `--masks`",
    "`object_masks`": "`--object-masks`",
    "`backgrounds`": "`--backgrounds`",
    "`calibration`": "`--calibration`",
}
messages = Console(stderr=True)

Url = Annotated[str, typer.Option(envvar="CONTRAFACT_URL", help="the gateway's URL")]
Key = Annotated[str, typer.Option(envvar="CONTRAFACT_API_KEY", help="API key, if the gateway requires one")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, for machines")]
JobId = Annotated[str, typer.Argument(help="a job's id", metavar="JOB")]
URL = "http://127.0.0.1:8000"
WIDTH_OUTSIDE_TERMINALS = 160


@contextmanager
def open_client(url: str, api_key: str) -> Iterator[Client]:
    """Open a client. A problem inside the block prints a message and exits with its code."""
    try:
        client = Client(url, api_key or None)
    except ValueError as error:
        messages.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    try:
        yield client
    except ValidationError as error:
        messages.print(f"error: {validation_sentence(error.errors())}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except ValueError as error:
        messages.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error
    except Problem as problem:
        messages.print(f"error: {in_options(problem.detail)}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(4 if isinstance(problem, Unreachable | NotReady) else 3) from problem
    finally:
        client.close()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file that the block writes. If either fails, print a message and exit with code 2."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        messages.print(f"error: {path} cannot be written: {error.strerror}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from error


def print_output(output: RenderableType) -> None:
    """Print a command's result on stdout: strings unchanged, tables as wide as the terminal."""
    if isinstance(output, str):
        print(output)
    else:
        Console(width=None if sys.stdout.isatty() else WIDTH_OUTSIDE_TERMINALS).print(output)


def print_rows(rows: Iterable[BaseModel], as_json: bool, table: Callable[[Iterable[Any]], RenderableType]) -> None:
    """Print rows as a `table`, or with --json one JSON object per line as they come."""
    if not as_json:
        print_output(table(rows))
        return
    for row in rows:
        print(row.model_dump_json())


def in_options(sentence: str) -> str:
    """The sentence with options of `contrafact` in place of the API's fields."""
    for field, option in _OPTIONS.items():
        sentence = sentence.replace(field, option)
    return sentence
