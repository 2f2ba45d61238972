"""`contrafact repair`: train a model under test on a job's counterfactuals, and show the gains and losses."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from contrafact.client import Client
from contrafact.command_line import URL, Json, Key, Url, messages, open_client, print_output, writing
from contrafact.progress_display import show_progress
from shared.schemas.models import ModelSpec
from shared.schemas.repairs import ARMS, RECIPES, CellFigures, RepairRequest, RepairResult, RepairView
from shared.words.repair_tables import arm_table, class_table
from shared.words.wording import SCORE_WORDS

SECONDS_BETWEEN_LOOKS = 1.0
CELLS_SHOWN = 12

repairs = typer.Typer(help="Repairs: list, cancel, delete.", no_args_is_help=True)
RepairId = Annotated[str, typer.Argument(help="a repair's id", metavar="REPAIR")]
Names = list[str] | None


def repair(
    job: Annotated[str, typer.Option(help="a finished job with ground truth")],
    model: Annotated[str, typer.Option(help="the model under test to train")],
    steps: Annotated[int | None, typer.Option(help="optimiser steps of every arm")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="peak learning rate")] = None,
    batch_size: Annotated[int | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    recipe: Annotated[str | None, typer.Option(help=f"a paper's training: {', '.join(RECIPES)}")] = None,
    epochs: Annotated[int | None, typer.Option(help="passes over all training images, instead of steps")] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="start from random weights")] = False,
    held_out: Annotated[float | None, typer.Option(help="share of source images kept for evaluation")] = None,
    factor: Annotated[Names, typer.Option(help="train on changes of this factor; may be repeated")] = None,
    value: Annotated[Names, typer.Option(help="train on changes to this value; may be repeated")] = None,
    hold_out_value: Annotated[Names, typer.Option(help="evaluate this value without training on it")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="save the repaired model as this tar file")] = None,
    add_as: Annotated[str | None, typer.Option(help="add the repaired model to your models under this name")] = None,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Train a model on a job's accepted counterfactuals. Waits, then prints the model's and its controls' results.

    Exit codes: 0 repaired; 1 the repair failed or was cancelled.
    """
    options: dict[str, object] = {"model": model, "steps": steps, "batch_size": batch_size, "seed": seed}
    options |= {"learning_rate": learning_rate, "held_out": held_out, "recipe": recipe, "epochs": epochs}
    options |= {"from_scratch": from_scratch or None}
    options |= {"factors": factor, "values": value, "hold_out_values": hold_out_value}
    request = RepairRequest.model_validate({name: setting for name, setting in options.items() if setting is not None})
    with open_client(url, api_key) as client:
        view = _follow(client, client.begin_repair(job, request))
        result = _result_of(view)
        if out is not None:
            content = client.repaired_model(view.id)
            with writing(out):
                out.write_bytes(content)
        if add_as is not None:
            _add(client, view, add_as)
        if not as_json:
            print_output(result_tables(result))
        print(view.model_dump_json() if as_json else view.id)


def _result_of(view: RepairView) -> RepairResult:
    """The result of a repair that is over. Exits with code 1 if it has none."""
    if view.result is None:
        messages.print(f"the repair is {view.state}: {view.failure}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    return view.result


@repairs.command("list")
def list_repairs(as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List your newest repairs."""
    with open_client(url, api_key) as client:
        for view in client.repairs().repairs:
            print(view.model_dump_json() if as_json else f"{view.id}  {view.state}  {view.model}  of job {view.job}")


@repairs.command()
def cancel(repair: RepairId, url: Url = URL, api_key: Key = "") -> None:
    """Stop a repair."""
    with open_client(url, api_key) as client:
        messages.print(f"repair {repair} is {client.cancel_repair(repair).state}")


@repairs.command()
def delete(repair: RepairId, url: Url = URL, api_key: Key = "") -> None:
    """Delete a repair with its models."""
    with open_client(url, api_key) as client:
        client.delete_repair(repair)
        messages.print(f"repair {repair} is deleted")


def result_tables(result: RepairResult) -> RenderableType:
    """The result as tables and sentences: all arms on every set, and the cells that changed most."""
    score = SCORE_WORDS[result.metric].score
    tables: list[RenderableType] = [
        _table((f"{score} on held-out source images", "images of sources"), arm_table(result.sets))
    ]
    if by_class := class_table(result):
        tables.append(_table((score if result.metric == "accuracy" else "IoU of all pixels", "class"), by_class))
    if result.cells:
        tables.append(_cells(result.cells[:CELLS_SHOWN]))
    return Group(*tables, *(Text(f"• {sentence}") for sentence in result.sentences))


def _table(heads: tuple[str, str], rows: list[tuple[str, str, list[str]]]) -> Table:
    table = Table(*heads, *ARMS)
    for name, size, values in rows:
        table.add_row(name, size, *values)
    return table


def _cells(cells: list[CellFigures]) -> Table:
    table = Table("class", "changed to", "images", "before", "best control", "repaired", "trained on")
    for cell in cells:
        rates = (f"{rate.value or 0:.0%}" for rate in (cell.before, cell.best_control, cell.repaired))
        table.add_row(cell.label, cell.value, str(cell.before.n), *rates, "yes" if cell.trained_on else "no")
    return table


def _add(client: Client, view: RepairView, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.tar")
        path.write_bytes(client.repaired_model(view.id))
        description = f"{view.model} repaired on job {view.job}"
        model = client.add_model(ModelSpec(name=name, description=description), [path])
    messages.print(f"model {model.name} is added to your models", markup=False)


def _follow(client: Client, view: RepairView) -> RepairView:
    """Show progress until the repair ends."""
    with show_progress(messages, "waiting for a trainer", view.progress.total, "steps") as display:
        while view.state == "running":
            stage = f"training {view.progress.arm}" if view.progress.arm else None
            display.update(view.progress.done, view.progress.total, stage)
            time.sleep(SECONDS_BETWEEN_LOOKS)
            view = client.repair(view.id)
        display.update(view.progress.done, view.progress.total)
    return view
