"""`contrafact suites` and `contrafact gate`: frozen counterfactuals, and the test of a release on them in CI."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from contrafact import printing
from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client
from contrafact.job_files import parse_pair
from contrafact.progress_display import show_progress
from shared.schemas.suites import MAX_DROP, RunResults, RunView, SuiteFilters, SuiteRequest

EXIT_NOTHING_TESTED = 2
REVISION_CHARACTERS = 12
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
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Test a release on a suite and print a line per breach. Exit code 0: none, 1: breaches, 2: nothing was tested.

    A breach is a drop whose interval, adjusted for all tested cells, lies entirely beyond --max-drop.
    """
    try:
        with open_client(url, api_key) as client:
            run = client.start_run(suite, model)
            baseline_run = None if baseline is None else _baseline(client, suite, baseline)
            for pending_run in (run, baseline_run):
                if pending_run is not None:
                    wait_for_run(client, suite, pending_run)
            results = client.run_results(suite, run.id, None if baseline_run is None else baseline_run.id, max_drop)
    except typer.Exit as error:
        raise typer.Exit(EXIT_NOTHING_TESTED) from error
    for line in [results.model_dump_json()] if as_json else results.breaches:
        print(line)
    messages.print(_summary(results), soft_wrap=True, markup=False)
    if all(cell.judgement == "too few images" for cell in results.cells):
        messages.print(_nothing_tested(results), style="red", soft_wrap=True, markup=False)
        raise typer.Exit(EXIT_NOTHING_TESTED)
    raise typer.Exit(1 if results.breaches else 0)


def _nothing_tested(results: RunResults) -> str:
    left_out = f" {results.left_out} counterfactuals have no usable prediction." if results.left_out else ""
    return f"error: nothing could be tested: no cell has enough source images.{left_out} Freeze a suite of more images."


def _baseline(client: Client, suite: str, baseline: str) -> RunView:
    earlier = {run.id: run for run in client.suite(suite).runs}
    return earlier.get(baseline) or client.start_run(suite, baseline)


def wait_for_run(client: Client, suite: str, run: RunView) -> None:
    """Wait until the run is done. Raises ValueError if the run or any of its images failed."""
    counts = run.progress.images
    total = counts.waiting + counts.in_progress + counts.done + counts.failed + counts.cancelled
    with show_progress(messages, f"testing {run.model}", total) as display:
        while run.state == "running":
            display.update(printing.finished(run.progress), total, detail=printing.details(run.progress))
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


def _summary(results: RunResults) -> str:
    """The compared releases, and the number of cells per judgement."""
    counts = {name: sum(cell.judgement == name for cell in results.cells) for name in ("drop", "held", "undecided")}
    too_few = len(results.cells) - sum(counts.values())
    baseline = "its own null arms"
    if results.baseline_model is not None and results.baseline_revision is not None:
        baseline = f"{results.baseline_model} ({results.baseline_revision[:REVISION_CHARACTERS]})"
    release = f"{results.model} ({results.revision[:REVISION_CHARACTERS]})"
    return (
        f"{release} against {baseline}, drops of more than {results.max_drop:g} points: "
        f"{counts['drop']} shown, {counts['held']} ruled out, {counts['undecided']} undecided, "
        f"{too_few} with too few images"
    )
