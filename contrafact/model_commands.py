"""`contrafact models`: list, add, remove and test models under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from contrafact import printing
from contrafact.command_line import URL, Json, Key, Url, messages, open_client, print_output
from contrafact.jatic import DESCRIBED_KIND, jatic_metadata_beside, jatic_spec
from contrafact.progress_display import show_upload
from shared.media.class_names import read_class_names
from shared.schemas.models import ModelSpec, is_model_file

models = typer.Typer(help="Models under test: list them, add your own.", invoke_without_command=True)
ModelId = Annotated[str, typer.Argument(help="the model's name", metavar="NAME")]


@models.callback()
def list_by_default(context: typer.Context, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the models under test. `add` your own, `remove` them, or `test` more models on a finished job's images."""
    if context.invoked_subcommand is None:
        list_models(as_json, url, api_key)


@models.command("list")
def list_models(as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the models under test with their classes."""
    with open_client(url, api_key) as client:
        listing = client.models_when_ready()
        if as_json:
            print(listing.model_dump_json())
        else:
            print_output(printing.models(listing))


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
        typer.Option(exists=True, dir_okay=False, help="JSON: how an image becomes the input of an ONNX model"),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "--task", help="classification (default), segmentation or detection")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="what an ONNX model returns: logits or probabilities (default: as it shows itself)"),
    ] = None,
    licence: str = "",
    description: str = "",
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Upload a model under test and print its name. The gateway refuses a model that it cannot load and run once.

    Without --preprocessing, an .onnx file is described by the metadata of JATIC_ONNX that lie beside it.
    """
    with open_client(url, api_key) as client:
        fields: dict[str, JsonValue] = {"name": name, "licence": licence, "description": description}
        if classes is not None:
            fields["classes"] = read_class_names(classes.read_bytes(), classes.name)
        if preprocessing is not None:
            fields["preprocessing"] = json.loads(preprocessing.read_text(encoding="utf-8"))
        fields |= {name: value for name, value in (("kind", kind), ("output", output)) if value is not None}
        files = _files(paths)
        spec = _described(ModelSpec.model_validate({key: value for key, value in fields.items() if value != ""}), files)
        with show_upload(messages, name, sum(file.stat().st_size for file in files)) as progress:
            view = client.add_model(spec, files, progress)
        messages.print(f"{view.format}, {view.bytes:,} bytes, {len(view.classes)} classes", markup=False)
        print(view.model_dump_json() if as_json else view.name)


@models.command()
def remove(name: ModelId, url: Url = URL, api_key: Key = "") -> None:
    """Delete a model that you uploaded. Results of jobs stay."""
    with open_client(url, api_key) as client:
        ids = [model.id for model in client.models_when_ready().models if model.uploaded and model.name == name]
        if not ids or ids[0] is None:
            raise ValueError(f"you have uploaded no model {name!r}; `contrafact models` lists your models")
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
    with open_client(url, api_key) as client:
        detail = client.add_models_to_job(job, model)
        messages.print(f"job {detail.id} runs again; {detail.progress.images.waiting} source images wait")


def _files(paths: list[Path]) -> list[Path]:
    """The files to send; of a folder, only model files. Raises ValueError if there are none."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            folder_files = sorted(file for file in path.iterdir() if file.is_file())
            model_files = [file for file in folder_files if is_model_file(file.name) or file.suffix.lower() == ".onnx"]
            if not model_files:
                names = ", ".join(file.name for file in folder_files[:9])
                raise ValueError(f"there is no model in {path}; its files are {names}")
            files += model_files
        elif path.is_file():
            files.append(path)
        else:
            raise ValueError(
                f"{path} does not exist. Download a model of the Hub first: hf download ID --local-dir FOLDER"
            )
    return files


def _described(spec: ModelSpec, files: list[Path]) -> ModelSpec:
    """The spec of one ONNX file with what the metadata of JATIC_ONNX beside it say and the spec leaves open."""
    alone = len(files) == 1 and files[0].suffix.lower() == ".onnx"
    if not alone or spec.preprocessing is not None or spec.kind != DESCRIBED_KIND:
        return spec
    metadata = jatic_metadata_beside(files[0])
    if metadata is None:
        return spec
    known = jatic_spec(metadata, spec.name, classes=spec.classes if isinstance(spec.classes, list) else None)
    return ModelSpec.model_validate(known.model_dump(exclude_unset=True) | spec.model_dump(exclude_unset=True))
