"""`contrafact dose`: a job's weaknesses at half, full and stronger dose, and undone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output
from contrafact.job_progress import follow_job, print_findings
from shared.schemas.doses import DoseRequest
from shared.schemas.jobs import JobDetail
from shared.schemas.results import JobResults


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
