"""`contrafact models`: list, add, remove and test models under test."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue
from rich.console import Console

from contrafact import printing
from contrafact.command_line import URL, Json, Key, Url, connected, messages
from contrafact.progress_display import upload_shown_on
from shared.schemas.models import ModelSpec, is_model_file

models = typer.Typer(help="Models under test: list them, add your own.", invoke_without_command=True)
ModelId = Annotated[str, typer.Argument(help="the model's name", metavar="NAME")]


@models.callback()
def by_default(context: typer.Context, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the models under test. `add` your own, `remove` them, or `test` more models on a finished job's images."""
    if context.invoked_subcommand is None:
        list_models(as_json, url, api_key)


@models.command("list")
def list_models(as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the models under test with their classes."""
    with connected(url, api_key) as client:
        listing = client.models_when_ready()
        if as_json:
            print(listing.model_dump_json())
        else:
            Console(width=None if sys.stdout.isatty() else 160).print(printing.models(listing))


@models.command()
def add(
    paths: Annotated[list[Path], typer.Argument(help="a folder in Hub layout, its files, a zip or tar, or one .onnx")],
    name: Annotated[str, typer.Option(help="name in jobs: letters, digits, . _ -")],
    classes: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="class names of its outputs: one per line in order, or JSON (class → index)",
        ),
    ] = None,
    preprocessing: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="JSON: how an ONNX model's input is made from an image"),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "--task", help="classification (default) or segmentation")
    ] = None,
    output: Annotated[str | None, typer.Option(help="what an ONNX model returns: logits or probabilities")] = None,
    licence: str = "",
    description: str = "",
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Upload a model under test and print its name. The model is loaded and run once, and refused if that fails."""
    with connected(url, api_key) as client:
        fields: dict[str, JsonValue] = {"name": name, "licence": licence, "description": description}
        if classes is not None:
            fields["classes"] = _class_names(classes)
        if preprocessing is not None:
            fields["preprocessing"] = json.loads(preprocessing.read_text(encoding="utf-8"))
        fields |= {name: value for name, value in (("kind", kind), ("output", output)) if value is not None}
        spec = ModelSpec.model_validate({key: value for key, value in fields.items() if value != ""})
        files = _files(paths)
        with upload_shown_on(messages, name, sum(file.stat().st_size for file in files)) as sent:
            view = client.add_model(spec, files, sent)
        messages.print(f"{view.format}, {view.bytes:,} bytes, {len(view.classes)} classes", markup=False)
        print(view.model_dump_json() if as_json else view.name)


@models.command()
def remove(name: ModelId, url: Url = URL, api_key: Key = "") -> None:
    """Delete a model that you uploaded. Results of jobs stay."""
    with connected(url, api_key) as client:
        ids = [model.id for model in client.models_when_ready().models if model.uploaded and model.name == name]
        if not ids or ids[0] is None:
            raise ValueError(f"you have uploaded no model {name!r}; `contrafact models` lists them")
        client.remove_model(ids[0])
        messages.print(f"model {name} is deleted")


@models.command("test")
def add_to_job(
    job: Annotated[str, typer.Argument(help="a finished job", metavar="JOB")],
    model: Annotated[list[str], typer.Argument(help="models under test", metavar="NAME...")],
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Test more models on the images of a finished job. Nothing is rendered again."""
    with connected(url, api_key) as client:
        detail = client.add_models_to_job(job, model)
        messages.print(f"job {detail.id} runs again; {detail.progress.images.waiting} source images wait")


def _files(paths: list[Path]) -> list[Path]:
    """The files to send: from a folder those that belong to a model. Raises ValueError if there are none."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.is_file())
            mine = [file for file in inside if is_model_file(file.name) or file.suffix.lower() == ".onnx"]
            if not mine:
                raise ValueError(
                    f"there is no model in {path}; its files are {', '.join(file.name for file in inside[:9])}"
                )
            files += mine
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(
                f"there is no {path}; of a Hub id, `hf download ID --local-dir FOLDER` makes a folder first"
            )
    return files


def _class_names(path: Path) -> JsonValue:
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith(("{", "[")):
        names: JsonValue = json.loads(text)
        return names
    return [line.strip() for line in text.splitlines() if line.strip()]
