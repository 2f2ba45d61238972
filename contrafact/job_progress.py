"""A job in a terminal: its progress until it ends, then its findings."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from contrafact import printing
from contrafact.client import Client
from contrafact.command_line import messages, print_output
from contrafact.progress_display import show_progress
from shared.schemas.jobs import JobDetail
from shared.stages import stage_words


def follow_job(client: Client, detail: JobDetail) -> JobDetail:
    """Show progress until the job ends, and a link to the gallery once a counterfactual is accepted."""
    current, has_link = detail, _accepted_count(detail) > 0
    with show_progress(messages, stage_words(detail.progress), detail.images) as display:
        for current in client.follow(detail.id):
            progress = current.progress
            display.update(
                printing.count_finished(progress), current.images, stage_words(progress), printing.details(progress)
            )
            if not has_link and _accepted_count(current):
                has_link = True
                seconds = max(0.0, (datetime.now(UTC) - current.created_at).total_seconds())
                line = f"first counterfactual after {seconds:.0f} s: {client.gallery_of(current.id)}"
                messages.print(line, markup=False, highlight=False, soft_wrap=True)
    return current


def print_findings(client: Client, job: str) -> None:
    """Print the findings. Exits with code 1 if the job failed or was cancelled, with 0 if it is still running."""
    page = client.results(job, {}, limit=1)
    unsuccessful = page.state in ("failed", "cancelled")
    if page.metrics is None:
        messages.print(f"the job is {page.state}; findings are available when it is done")
        raise typer.Exit(1 if unsuccessful else 0)
    print_output(printing.findings(page.metrics))
    if unsuccessful:
        messages.print(f"the job is {page.state}")
        raise typer.Exit(1)


def _accepted_count(detail: JobDetail) -> int:
    return sum(funnel.accepted for funnel in detail.progress.funnel)
