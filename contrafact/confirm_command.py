"""`contrafact confirm`: an unrelated editor tests a job's findings again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client
from contrafact.job_progress import follow_job, print_findings
from shared.schemas.jobs import JobDetail
from shared.schemas.reviews import ConfirmationJob, ConfirmationRequest
from shared.wording import change_in_words, class_in_words


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
