"""`contrafact confirm`: an unrelated editor tests a job's findings again.

`contrafact dose`: a job's weaknesses at half, full and stronger dose, and undone.

`contrafact compare`: two models, two methods, two jobs or two suite runs on the same source images.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output
from contrafact.printing import change_of
from contrafact.progress_display import follow_job, print_findings
from shared.schemas.comparisons import CellDifference, ComparisonChoice, JobComparison
from shared.schemas.effects import DoseRequest
from shared.schemas.jobs import JobDetail
from shared.schemas.results import JobResults
from shared.schemas.reviews import ConfirmationJob, ConfirmationRequest
from shared.words.wording import change_in_words, class_in_words, interval, p_value, points

Name = str | None


class Editor(StrEnum):
    """The methods that confirm findings: `shifts` those of dillema, `dillema` those of methods that invert."""

    shifts = "shifts"
    dillema = "dillema"


def confirm(
    job: JobId,
    confirm_with: Annotated[
        Editor, typer.Option("--with", help="shifts for findings of dillema, dillema for those of other methods")
    ] = Editor.shifts,
    wait: Annotated[
        bool, typer.Option("--wait", help="follow the new job, then rebuild the report and print its findings")
    ] = False,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Test a job's findings again with an unrelated editor. Prints the id of the job that does it.

    Without --wait, run `contrafact report JOB --anew` when that job is done.
    """
    with open_client(url, api_key) as client:
        request = ConfirmationRequest.model_validate({"confirm_with": confirm_with.value})
        started = client.confirm(job, request)
        messages.print(f"job {started.id} tests {started.images} images of job {job} with {confirm_with.value}")
        for finding in started.not_tested:
            name = f"{finding.model}, {class_in_words(finding.cell)} {change_in_words(finding.cell)}"
            messages.print(f"not tested again: {name}: {finding.reason}", markup=False, soft_wrap=True)
        detail = follow_job(client, started) if wait else started
        reply = ConfirmationJob.model_validate({**dict(detail), "not_tested": started.not_tested})
        print(reply.model_dump_json() if as_json else detail.id)
        if detail.state in ("failed", "cancelled"):
            messages.print(f"job {detail.id} is {detail.state}; nothing is confirmed")
            raise typer.Exit(1)
        if wait:
            _print_verdicts(client, job, as_json)


def _print_verdicts(client: Client, job: str, as_json: bool) -> None:
    """Rebuild the report with the verdicts, and print the findings. Exits with code 1 if it cannot be rebuilt."""
    rebuilt: JobDetail = follow_job(client, client.report_anew(job))
    if rebuilt.state != "done":
        messages.print(f"the report could not be rebuilt: the job is {rebuilt.state}, {rebuilt.failure}")
        raise typer.Exit(1)
    if not as_json:
        print_findings(client, job)


def dose(
    job: JobId,
    method: Annotated[str | None, typer.Option(help="the weaknesses' method; default: the only one with any")] = None,
    parameter: Annotated[
        str | None,
        typer.Option(help="guidance, self_fraction, control_scale, image_guidance or wording"),
    ] = None,
    doses: Annotated[str, typer.Option(help="relative to the job's own dose, which is 1")] = "0.5,1,1.5",
    images: Annotated[int, typer.Option(help="most source images of each weakness")] = 40,
    wait: Annotated[
        bool, typer.Option("--wait", help="follow the job, rebuild the first job's report, and print its findings")
    ] = False,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Render the weaknesses of a finished job at other doses, and undone. Prints the new job's id.

    `contrafact report JOB --anew` adds the dose curves to the first job when the new one is done; --wait does both.
    """
    with open_client(url, api_key) as client:
        fields = {"method": method, "parameter": parameter, "doses": doses.split(","), "images": images}
        dosed = client.dose(job, DoseRequest.model_validate(fields))
        if not wait:
            print_output(dosed.model_dump_json() if as_json else dosed.id)
            return
        _add_curves(client, job, dosed)
        metrics = client.results(job, {}, limit=1).metrics
        if as_json:
            print_output("null" if metrics is None else metrics.model_dump_json())
        else:
            print_findings(client, job)
            for sentence in dict.fromkeys(_unchanged_edits(metrics)):
                messages.print(sentence, markup=False, soft_wrap=True)


def _unchanged_edits(metrics: JobResults | None) -> Iterator[str]:
    """A sentence on each curve whose doses do not change the edit."""
    for figures in metrics.results if metrics is not None else []:
        for effect in figures.cells:
            if effect.dose is not None and effect.dose.unchanged_edit:
                yield f"{effect.cell.label}, {effect.cell.value}: {effect.dose.unchanged_edit}"


def _add_curves(client: Client, job: str, dosed: JobDetail) -> None:
    """Wait for the job of doses, and rebuild the first job's report with its curves. Exits with 1 if it failed."""
    messages.print(f"job {dosed.id} renders the doses")
    dosed = follow_job(client, dosed)
    if dosed.state != "done":
        messages.print(f"error: job {dosed.id} is {dosed.state} {dosed.failure}", style="red", markup=False)
        raise typer.Exit(1)
    follow_job(client, client.report_anew(job))


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
        if comparison.reserve:
            messages.print(
                f"Do not rely on this comparison. {comparison.reserve}", style="red", soft_wrap=True, markup=False
            )
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
