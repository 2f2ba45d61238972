"""`contrafact`: the public API from a terminal. Data on stdout, everything else on stderr.

Exit codes: 0 done; 1 the job failed or was cancelled; 2 wrong usage; 3 the gateway refused; 4 no answer.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from contrafact import export_command, model_commands, printing, repair_commands, review_commands, suite_commands
from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, connected, messages
from contrafact.job_files import pair, parameters, plan_job, spec_of, submit_job
from contrafact.progress_display import shown_on
from contrafact.system_commands import add_operator_commands, serve
from shared.problems import NotReady
from shared.schemas.jobs import JobDetail, ModelView
from shared.stages import stage_words

app = typer.Typer(
    help="Test a vision model with counterfactual images. Data on stdout, everything else on stderr.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)


@app.command()
def submit(
    images: Annotated[list[Path], typer.Argument(exists=True, help="image files, folders, or one zip or tar")],
    task: Annotated[str, typer.Option(help="what your model does, in a sentence")],
    labels: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="CSV (file,label,group) or JSON Lines")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="default: the profile's")] = None,
    model: Annotated[list[str] | None, typer.Option(help="model under test; default: the profile's")] = None,
    no_models: Annotated[bool, typer.Option("--no-models", help="only generate")] = False,
    parameter: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="parameter (METHOD.NAME=VALUE with several)")
    ] = None,
    label_map: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=CLASS", help="map your label to the model's class")
    ] = None,
    no_labels: Annotated[
        bool, typer.Option("--no-labels", help="ignore folder names; test without ground truth")
    ] = False,
    group_by: Annotated[
        Literal["image", "folder"], typer.Option(help="folder: images of one folder count as one, such as frames")
    ] = "image",
    masks: Annotated[
        Path | None,
        typer.Option(help="JSON of the spec's `masks`: the meaning of the masks in the folder `masks`"),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="data set similar to your images, on which the checks were calibrated"),
    ] = None,
    seed: int = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="start nothing; print the plan and the power")] = False,
    idempotency_key: Annotated[
        str | None, typer.Option("--key", help="idempotency key; default: derived from the request")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="start another job, even if the same request has made one")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="follow the job, then print its findings")] = False,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Start a job and print its id."""
    with connected(url, api_key) as client:
        chosen = parameters(parameter or [], method or [], lambda: client.methods().methods)
        tested = [] if no_models else model
        known = {name for listed in _listed(client) for name in listed.classes} if tested != [] else set()
        spec = spec_of(task, chosen, tested, label_map or [], seed, no_labels, calibration, masks, group_by)
        if dry_run:
            plan = plan_job(client, spec, images, labels, known, messages)
            _out(plan.model_dump_json() if as_json else printing.plan(plan))
            return
        key = idempotency_key or (uuid.uuid4().hex if again else None)
        detail = submit_job(client, spec, images, labels, known, key, messages)
        if detail.state != "running":
            messages.print(f"this request made job {detail.id} before, which is {detail.state}; --again starts another")
        if not as_json or wait:
            messages.print(f"job {detail.id} of {detail.images} images, {detail.labelled} with ground truth")
            plan = client.plan_of(detail.id)
            for line in printing.scaling(plan):
                messages.print(line)
            messages.print(printing.sensitivity(plan.sensitivity))
        if wait:
            detail = _follow(client, detail)
        print(detail.model_dump_json() if as_json else detail.id)
        if wait and not as_json:
            _print_findings(client, detail.id)
        if detail.state in ("failed", "cancelled"):
            raise typer.Exit(1)


@app.command("list")
def list_jobs(limit: int = 20, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the newest jobs."""
    with connected(url, api_key) as client:
        page = client.jobs(limit)
        _out(page.model_dump_json() if as_json else printing.jobs(page))


@app.command()
def status(
    job: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="follow the job until it ends")] = False,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Show the state and progress of a job."""
    with connected(url, api_key) as client:
        detail = client.job(job)
        detail = _follow(client, detail) if wait else detail
        _out(detail.model_dump_json() if as_json else printing.job(detail))
        if detail.state in ("failed", "cancelled"):
            raise typer.Exit(1)


@app.command()
def findings(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """Print what breaks the models under test, as a table and in sentences."""
    with connected(url, api_key) as client:
        if as_json:
            metrics = client.results(job, {}, limit=1).metrics
            print("null" if metrics is None else metrics.model_dump_json())
        else:
            _print_findings(client, job)


@app.command()
def results(
    job: JobId,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="FILTER=VALUE", help="method, factor, value, class, verdict, check, flipped, model"),
    ] = None,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Print the counterfactuals. With --json, one JSON object per line."""
    with connected(url, api_key) as client:
        filters = dict(pair(text) for text in where or [])
        views = client.counterfactuals(job, filters)
        if as_json:
            for view in views:
                print(view.model_dump_json())
        else:
            _out(printing.counterfactuals(views))


@app.command()
def report(
    job: JobId,
    out: Annotated[Path | None, typer.Option(help="default: contrafact-JOB.html; - for stdout")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="first rebuild the report with the current reviews")] = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Save the report as one self-contained HTML page and print its path."""
    with connected(url, api_key) as client:
        if anew and (detail := _follow(client, client.report_anew(job))).state != "done":
            raise ValueError(f"the report could not be rebuilt: the job is {detail.state}, {detail.failure}")
        page = client.report(job)
    if str(out) == "-":
        sys.stdout.buffer.write(page)
        return
    path = out or Path(f"contrafact-{job}.html")
    path.write_bytes(page)
    print(path)


@app.command()
def cancel(job: JobId, url: Url = URL, api_key: Key = "") -> None:
    """Stop a running job. Finished images stay."""
    with connected(url, api_key) as client:
        messages.print(f"job {client.cancel(job).id} is cancelled")


@app.command()
def retry(job: JobId, url: Url = URL, api_key: Key = "") -> None:
    """Retry a job's failed and cancelled images. Finished images stay."""
    with connected(url, api_key) as client:
        waiting = client.retry(job).progress.images.waiting
        messages.print(f"job {job} is running again; {waiting} source images wait")


@app.command()
def delete(job: JobId, url: Url = URL, api_key: Key = "") -> None:
    """Delete a job with its results and report."""
    with connected(url, api_key) as client:
        client.delete(job)
        messages.print(f"job {job} is deleted")


@app.command()
def methods(as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the methods and their parameters."""
    with connected(url, api_key) as client:
        reply = client.methods()
        _out(reply.model_dump_json() if as_json else printing.methods(reply))


def _listed(client: Client) -> list[ModelView]:
    """The models under test; waits while the services start."""
    try:
        return client.models().models
    except NotReady as problem:
        with shown_on(messages, "starting the services") as display:
            display.update(0, 0, detail=_awaited(problem))
            return client.models_when_ready(lambda now: display.update(0, 0, detail=_awaited(now))).models


def _awaited(problem: NotReady) -> str:
    """What the start waits for. A service that does not listen yet is no error here."""
    service = problem.members.get("unreachable")
    return f"{service} does not answer yet" if service else problem.detail


def _follow(client: Client, detail: JobDetail) -> JobDetail:
    """Show progress until the job ends."""
    now = detail
    with shown_on(messages, stage_words(detail.progress), detail.images) as display:
        for now in client.follow(detail.id):
            at = now.progress
            display.update(printing.finished(at), now.images, stage_words(at), printing.details(at))
            if not _accepted(detail) and _accepted(now):
                detail = now
                seconds = max(0.0, (datetime.now(UTC) - now.created_at).total_seconds())
                words = f"first counterfactual after {seconds:.0f} s: {client.gallery_of(now.id)}"
                messages.print(words, markup=False, highlight=False, soft_wrap=True)
    return now


def _accepted(detail: JobDetail) -> int:
    return sum(funnel.accepted for funnel in detail.progress.funnel)


def _print_findings(client: Client, job: str) -> None:
    page = client.results(job, {}, limit=1)
    over = page.state in ("failed", "cancelled")
    if page.metrics is None:
        messages.print(f"the job is {page.state}; findings are available when it is done")
        raise typer.Exit(1 if over else 0)
    _out(printing.findings(page.metrics))
    if over:
        messages.print(f"the job is {page.state}")
        raise typer.Exit(1)


def _out(shown: object) -> None:
    if isinstance(shown, str):
        print(shown)
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(shown)


app.add_typer(model_commands.models, name="models")
app.command()(export_command.export)
app.add_typer(suite_commands.suites, name="suites")
app.command()(suite_commands.gate)
app.command()(repair_commands.repair)
app.add_typer(repair_commands.repairs, name="repairs")
app.command()(review_commands.review)
app.command()(review_commands.reviews)
add_operator_commands(app)
main: Callable[[], None] = app
