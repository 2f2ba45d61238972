"""`contrafact suites` and `contrafact gate`: frozen counterfactuals, and the test of a release on them in CI."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from contrafact import printing
from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output
from contrafact.gate_files import (
    REVISION_CHARACTERS,
    gate_markdown,
    junit_document,
    nothing_tested,
    run_sentence,
    summary,
)
from contrafact.job_files import parse_pair
from contrafact.progress_display import show_progress
from shared.schemas.comparisons import ComparisonChoice
from shared.schemas.suites import MAX_DROP, RunResults, RunView, SuiteFilters, SuiteRequest

EXIT_NOTHING_TESTED = 2
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # GitHub Actions: the file whose Markdown it shows with the step
SECONDS_BETWEEN_LOOKS = 1.0

suites = typer.Typer(help="Freeze counterfactuals, to test every release on the same images.", no_args_is_help=True)
SuiteName = Annotated[str, typer.Argument(help="a suite's name or id", metavar="SUITE")]


@suites.command("create")
def create(
    job: JobId,
    name: Annotated[str, typer.Option(help="letters, digits, . _ -")],
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="FILTER=VALUE", help="method, factor, value, from, class, flipped, model"),
    ] = None,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Freeze the accepted counterfactuals of a job and print the suite's name."""
    with open_client(url, api_key) as client:
        filters = SuiteFilters.model_validate(dict(parse_pair(text) for text in where or []))
        suite = client.create_suite(SuiteRequest(job=job, name=name, filters=filters))
        messages.print(f"{suite.counterfactuals} counterfactuals of {suite.sources} source images are frozen")
        print(suite.model_dump_json() if as_json else suite.name)


@suites.command("list")
def list_suites(as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List your suites."""
    with open_client(url, api_key) as client:
        for suite in client.suites():
            print(suite.model_dump_json() if as_json else f"{suite.name}  of job {suite.made_from}")


@suites.command("runs")
def list_runs(suite: SuiteName, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the runs of a suite, newest first. `status`, `compare` and `gate --baseline` take their ids."""
    with open_client(url, api_key) as client:
        runs = client.suite(suite).runs
        if as_json:
            for run in runs:
                print(run.model_dump_json())
        else:
            print_output(_table(runs))


def _table(runs: Sequence[RunView]) -> Table:
    table = Table(Column("run", min_width=32), "model", "revision", "state", "started", box=None, pad_edge=False)
    for run in runs:
        started = f"{run.created_at:%Y-%m-%d %H:%M}"
        table.add_row(run.id, Text(run.model), run.revision[:REVISION_CHARACTERS], run.state, started)
    return table


@suites.command("delete")
def delete(suite: SuiteName, url: Url = URL, api_key: Key = "") -> None:
    """Delete a suite with its runs."""
    with open_client(url, api_key) as client:
        client.delete_suite(suite)
        messages.print(f"suite {suite} is deleted")


def gate(
    suite: Annotated[str, typer.Option(help="a suite's name or id")],
    model: Annotated[str, typer.Option(help="the release: a model under test")],
    baseline: Annotated[
        str | None,
        typer.Option(help="a model under test, or an earlier run's id; default: the release's own null arms"),
    ] = None,
    max_drop: Annotated[float, typer.Option(min=0, max=100, help="points that a cell may drop")] = MAX_DROP,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write JUnit XML, a test case for each cell")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="write verdict and cells as Markdown")] = None,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Test a release on a suite and print a line per breach. Exit code 0: none, 1: breaches, 2: nothing was tested.

    A breach is a drop whose interval, adjusted for all tested cells, lies entirely beyond --max-drop. In GitHub Actions
    the Markdown is also added to the step's summary.
    """
    try:
        with open_client(url, api_key) as client:
            results = _run_results(client, suite, model, baseline, max_drop)
            page = _page_of(client, results)
    except typer.Exit as error:
        raise typer.Exit(EXIT_NOTHING_TESTED) from error
    for line in [results.model_dump_json()] if as_json else results.breaches:
        print(line)
    messages.print(f"{summary(results)}\n{run_sentence(results)} {page}", soft_wrap=True, markup=False)
    _write_files(results, suite, junit, markdown)
    if results.shows_nothing:
        messages.print(f"error: {nothing_tested(results)}", style="red", soft_wrap=True, markup=False)
        raise typer.Exit(EXIT_NOTHING_TESTED)
    if reserve := f"{results.untestable} {results.doubtful}".strip():
        messages.print(reserve, soft_wrap=True, markup=False)
    raise typer.Exit(1 if results.breaches else 0)


def _write_files(results: RunResults, suite: str, junit: Path | None, markdown: Path | None) -> None:
    """Write the files for CI. Exits with code 2 if one of them cannot be written."""
    page = gate_markdown(results, suite)
    try:
        if junit is not None:
            junit.write_bytes(junit_document(results, suite))
        if markdown is not None:
            markdown.write_text(page, encoding="utf-8")
        if step_summary := os.environ.get(STEP_SUMMARY):
            with Path(step_summary).open("a", encoding="utf-8") as file:
                file.write(page)
    except OSError as error:
        messages.print(f"error: {error.filename} cannot be written: {error.strerror}", style="red", soft_wrap=True)
        raise typer.Exit(EXIT_NOTHING_TESTED) from error


def _run_results(client: Client, suite: str, model: str, baseline: str | None, max_drop: float) -> RunResults:
    """Run the release, and the baseline where it has not run, and compare them."""
    run = client.start_run(suite, model)
    baseline_run = None if baseline is None else _baseline(client, suite, baseline)
    for pending_run in (run, baseline_run):
        if pending_run is not None:
            wait_for_run(client, suite, pending_run)
    return client.run_results(suite, run.id, None if baseline_run is None else baseline_run.id, max_drop)


def _page_of(client: Client, results: RunResults) -> str:
    """The URL of the page of a run, or of its comparison with the baseline run."""
    if results.baseline is None:
        return client.gallery_of(results.run)
    return client.comparison_page_of(results.run, ComparisonChoice(other_job=results.baseline))


def _baseline(client: Client, suite: str, baseline: str) -> RunView:
    earlier = {run.id: run for run in client.suite(suite).runs}
    return earlier.get(baseline) or client.start_run(suite, baseline)


def wait_for_run(client: Client, suite: str, run: RunView) -> None:
    """Wait until the run is done. Raises ValueError if the run or any of its images failed."""
    counts = run.progress.images
    total = counts.waiting + counts.in_progress + counts.done + counts.failed + counts.cancelled
    with show_progress(messages, f"testing {run.model}", total) as display:
        while run.state == "running":
            display.update(printing.count_finished(run.progress), total, detail=printing.details(run.progress))
            time.sleep(SECONDS_BETWEEN_LOOKS)
            run = client.run(suite, run.id)
        display.update(total, total)
    if run.state != "done":
        raise ValueError(f"the run of {run.model} is {run.state}{': ' if run.failure else ''}{run.failure}")
    if run.progress.images.failed:
        raise ValueError(
            f"{run.progress.images.failed} images of the run of {run.model} failed; "
            f"`contrafact status {run.id}` says why, and the next gate retries them"
        )
