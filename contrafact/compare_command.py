"""`contrafact compare`: two models, two methods, two jobs or two suite runs on the same source images."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output
from contrafact.printing import change_of
from shared.schemas.comparisons import CellDifference, ComparisonChoice, JobComparison
from shared.wording import interval, p_value, points

Name = str | None


def compare(
    job: JobId,
    model: Annotated[Name, typer.Option(help="needed if the job has several")] = None,
    method: Annotated[Name, typer.Option(help="needed if the job has several")] = None,
    other_job: Annotated[Name, typer.Option(help="a job or suite run; default: the same job")] = None,
    other_model: Annotated[Name, typer.Option(help="default: the same model")] = None,
    other_method: Annotated[Name, typer.Option(help="default: the same method")] = None,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Print how the effects of two models, methods, jobs or suite runs differ on the same source images."""
    with open_client(url, api_key) as client:
        choice = ComparisonChoice(
            model=model, method=method, other_job=other_job, other_model=other_model, other_method=other_method
        )
        comparison = client.compare(job, choice)
        print_output(comparison.model_dump_json() if as_json else _table(comparison))
        messages.print(f"The images: {client.comparison_page_of(job, choice)}", soft_wrap=True, markup=False)


def _table(comparison: JobComparison) -> RenderableType:
    this, other = comparison.this, comparison.other
    names = f"{this.model} under {this.method} in {this.job}, against {other.model} under {other.method} in {other.job}"
    table = Table(box=None, pad_edge=False)
    for heading in ("class", "change"):
        table.add_column(heading)
    for heading in ("points", "other", "difference", "interval", "images", "q"):
        table.add_column(heading, justify="right")
    table.add_column("judgement")
    for row in comparison.cells:
        table.add_row(*_cells(row))
    summary = f"{this.sources} source images, paired by {comparison.pairing}; {comparison.disagreeing} disagreements"
    return Group(names, summary, table)


def _cells(row: CellDifference) -> list[str]:
    cell = row.cell
    label = "all" if cell is None else cell.label or "all"
    change = "all" if cell is None else change_of(cell)
    figures = [points(row.effect), points(row.other_effect), points(row.difference)]
    ends = interval(row.selected_interval or row.interval)
    return [label, change, *figures, ends, str(row.sources), p_value(row.q_value), row.judgement]
