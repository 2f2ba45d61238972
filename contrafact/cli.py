"""`contrafact`: the public API from a terminal. Data on stdout, everything else on stderr.

Exit codes: 0 done; 1 the job failed or was cancelled; 2 wrong usage; 3 the gateway refused; 4 no answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from contrafact import (
    export_command,
    model_commands,
    printing,
    repair_commands,
    review_commands,
    study_commands,
    suite_commands,
)
from contrafact.calibrate_command import calibrate
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output, print_rows, writing
from contrafact.confirm_command import compare, confirm, dose
from contrafact.job_files import parse_pair
from contrafact.progress_display import follow_job, print_findings
from contrafact.submit_command import submit
from contrafact.system_commands import add_operator_commands, serve
from contrafact.track_command import track
from shared.certificates import CA_FILE
from shared.schemas.reports import ReportFormat

FORMAT_OF_SUFFIX: dict[str, ReportFormat] = {".md": "md", ".markdown": "md", ".json": "json"}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def trust(
    ca_file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="PEM of certificate authorities to trust, too"),
    ] = None,
) -> None:
    """Test a vision model with counterfactual images. Data on stdout, everything else on stderr."""
    if ca_file is not None:
        os.environ[CA_FILE] = str(ca_file)


app.command()(serve)
app.command()(submit)


@app.command("list")
def list_jobs(limit: int = 20, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the newest jobs."""
    with open_client(url, api_key) as client:
        page = client.jobs(limit)
        print_output(page.model_dump_json() if as_json else printing.jobs(page))


@app.command()
def status(
    job: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="follow the job until it ends")] = False,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Show the state and progress of a job."""
    with open_client(url, api_key) as client:
        detail = client.job(job)
        detail = follow_job(client, detail) if wait else detail
        print_output(detail.model_dump_json() if as_json else printing.job(detail))
        if detail.state in ("failed", "cancelled"):
            raise typer.Exit(1)


@app.command()
def findings(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """Print what breaks the models under test, as a table and in sentences."""
    with open_client(url, api_key) as client:
        if as_json:
            metrics = client.results(job, {}, limit=1).metrics
            print("null" if metrics is None else metrics.model_dump_json())
        else:
            print_findings(client, job)


@app.command()
def results(
    job: JobId,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILTER=VALUE", help="method, factor, value, class, verdict, check, flipped, model, predicted"
        ),
    ] = None,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Print the counterfactuals. With --json, one JSON object per line."""
    with open_client(url, api_key) as client:
        filters = dict(parse_pair(text) for text in where or [])
        print_rows(client.counterfactuals(job, filters), as_json, printing.counterfactuals)


@app.command()
def report(
    job: JobId,
    report_format: Annotated[
        ReportFormat | None,
        typer.Option(
            "--format",
            help="html: one page; md: Markdown for a pull request; json: its data; default: suffix of --out, else html",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="default: contrafact-JOB.FORMAT; - for stdout")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="first rebuild the report with the current reviews")] = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Save the report and print its path: one self-contained HTML page, Markdown, or JSON."""
    chosen = report_format or FORMAT_OF_SUFFIX.get(out.suffix.lower() if out else "", "html")
    with open_client(url, api_key) as client:
        if anew and (detail := follow_job(client, client.report_anew(job))).state != "done":
            raise ValueError(f"the report could not be rebuilt: the job is {detail.state}, {detail.failure}")
        content = client.report(job, chosen)
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return
    path = out or Path(f"contrafact-{job}.{chosen}")
    with writing(path):
        path.write_bytes(content)
    print(path)


@app.command()
def cancel(job: JobId, url: Url = URL, api_key: Key = "") -> None:
    """Stop a running job. Finished images stay."""
    with open_client(url, api_key) as client:
        messages.print(f"job {client.cancel(job).id} is cancelled")


@app.command()
def retry(job: JobId, url: Url = URL, api_key: Key = "") -> None:
    """Retry a job's failed and cancelled images. Finished images stay."""
    with open_client(url, api_key) as client:
        waiting = client.retry(job).progress.images.waiting
        messages.print(f"job {job} is running again; {waiting} source images wait")


@app.command()
def delete(job: JobId, url: Url = URL, api_key: Key = "") -> None:
    """Delete a job with its results and report."""
    with open_client(url, api_key) as client:
        client.delete(job)
        messages.print(f"job {job} is deleted")


@app.command()
def methods(as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the methods and their parameters."""
    with open_client(url, api_key) as client:
        reply = client.methods()
        print_output(reply.model_dump_json() if as_json else printing.methods(reply))


app.add_typer(model_commands.models, name="models")
app.command()(export_command.export)
app.add_typer(suite_commands.suites, name="suites")
app.command()(suite_commands.gate)
app.command()(repair_commands.repair)
app.add_typer(repair_commands.repairs, name="repairs")
app.command()(review_commands.review)
app.command()(review_commands.reviews)
app.command()(review_commands.mark)
app.command()(review_commands.own_images)
app.add_typer(study_commands.study, name="study")
app.command()(review_commands.note)
app.command()(review_commands.notes)
app.command()(calibrate)
app.command()(compare)
app.command()(confirm)
app.command()(dose)
app.command()(track)
add_operator_commands(app)
main: Callable[[], None] = app
