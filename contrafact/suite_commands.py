"""`contrafact suites` and `contrafact gate`: frozen counterfactuals, and the test of a release on them in CI."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from contrafact import printing
from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, connected, messages
from contrafact.job_files import pair
from contrafact.progress_display import shown_on
from shared.schemas.suites import MAX_DROP, RunResults, RunView, SuiteFilters, SuiteRequest

FAILED = 2
SHOWN = 12  # characters of a revision
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
    with connected(url, api_key) as client:
        filters = SuiteFilters.model_validate(dict(pair(text) for text in where or []))
        suite = client.create_suite(SuiteRequest(job=job, name=name, filters=filters))
        messages.print(f"{suite.counterfactuals} counterfactuals of {suite.sources} source images are frozen")
        print(suite.model_dump_json() if as_json else suite.name)


@suites.command("list")
def list_suites(as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List your suites."""
    with connected(url, api_key) as client:
        for suite in client.suites():
            print(suite.model_dump_json() if as_json else f"{suite.name}  of job {suite.made_from}")


@suites.command("delete")
def delete(suite: SuiteName, url: Url = URL, api_key: Key = "") -> None:
    """Delete a suite with its runs."""
    with connected(url, api_key) as client:
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
    """Test a release on a suite; print a line per breach. Exit code 0: none, 1: breaches, 2: nothing was tested.

    A breach is a drop that is significantly larger than --max-drop: its interval, adjusted for all tested cells, lies
    beyond it.
    """
    try:
        with connected(url, api_key) as client:
            run = client.start_run(suite, model)
            held = None if baseline is None else _baseline(client, suite, baseline)
            for waited_for in (run, held):
                if waited_for is not None:
                    wait(client, suite, waited_for)
            results = client.run_results(suite, run.id, None if held is None else held.id, max_drop)
    except typer.Exit as ended:
        raise typer.Exit(FAILED) from ended
    for line in [results.model_dump_json()] if as_json else results.breaches:
        print(line)
    messages.print(_summary(results), soft_wrap=True, markup=False)
    if all(cell.judgement == "too few images" for cell in results.cells):
        messages.print(_nothing_tested(results), style="red", soft_wrap=True, markup=False)
        raise typer.Exit(FAILED)
    raise typer.Exit(1 if results.breaches else 0)


def _nothing_tested(results: RunResults) -> str:
    left_out = f" {results.left_out} counterfactuals have no usable prediction." if results.left_out else ""
    return f"error: nothing could be tested: no cell has enough source images.{left_out} Freeze a suite of more images."


def _baseline(client: Client, suite: str, baseline: str) -> RunView:
    earlier = {run.id: run for run in client.suite(suite).runs}
    return earlier.get(baseline) or client.start_run(suite, baseline)


def wait(client: Client, suite: str, run: RunView) -> None:
    """Wait until the run is done. Raises ValueError if it ends otherwise or if its images failed."""
    counts = run.progress.images
    total = counts.waiting + counts.in_progress + counts.done + counts.failed + counts.cancelled
    with shown_on(messages, f"testing {run.model}", total) as display:
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
    number = {name: sum(cell.judgement == name for cell in results.cells) for name in ("drop", "held", "undecided")}
    few = len(results.cells) - sum(number.values())
    against = "its own null arms"
    if results.baseline_model is not None and results.baseline_revision is not None:
        against = f"{results.baseline_model} ({results.baseline_revision[:SHOWN]})"
    release = f"{results.model} ({results.revision[:SHOWN]})"
    return (
        f"{release} against {against}, drops of more than {results.max_drop:g} points: "
        f"{number['drop']} shown, {number['held']} ruled out, {number['undecided']} undecided, "
        f"{few} with too few images"
    )
