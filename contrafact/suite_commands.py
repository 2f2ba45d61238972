"""`contrafact suites` and `contrafact gate`: frozen counterfactuals, and the test of a release on them in CI.

Files that `contrafact gate` writes for CI: JUnit XML, and Markdown for a job's summary or a pull request.
"""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer
from rich.table import Column, Table
from rich.text import Text

from contrafact import printing
from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_rows
from contrafact.job_files import parse_pair
from contrafact.progress_display import show_progress
from shared.schemas.comparisons import ComparisonChoice
from shared.schemas.effects import SMALL_LOSS
from shared.schemas.exports import Release
from shared.schemas.suites import MAX_DROP, CellComparison, Judgement, RunResults, RunView, SuiteFilters, SuiteRequest
from shared.words.markdown import plain, sentence, table
from shared.words.verdicts import counts_tested, is_suspected, limit_in_words
from shared.words.wording import SCORE_WORDS, class_in_words, factor_in_words, interval, percent, points

REVISION_CHARACTERS = 12
MAX_ROWS = 150  # of the table: GitHub takes 65,536 characters in a comment
NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SKIPPED: frozenset[Judgement] = frozenset({"undecided", "too few images"})
ORDER: Sequence[Judgement] = ("drop", "undecided", "held", "too few images")
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
        print_rows(client.suite(suite).runs, as_json, _table)


def _table(runs: Iterable[RunView]) -> Table:
    table = Table(Column("run", min_width=32), "model", "revision", "state", "started", box=None, pad_edge=False)
    for run in runs:
        started = f"{run.created_at:%Y-%m-%d %H:%M}"
        table.add_row(run.id, Text(run.model), run.revision[:REVISION_CHARACTERS], run.state, started)
    return table


@suites.command("publish")
def publish(
    suite: SuiteName,
    folder: Annotated[Path, typer.Argument(help="a new folder")],
    licence: Annotated[str, typer.Option(help="SPDX id of the data set's licence, such as CC-BY-4.0")],
    attribution: Annotated[str, typer.Option(help="whose source images these are, and on what terms")] = "",
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Write a suite as a data set for the Hugging Face Hub: parquet, card with licences and provenance, Croissant."""
    release = Release(licence=licence, attribution=attribution)
    with open_client(url, api_key) as client, tempfile.TemporaryFile() as archive:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; choose a new folder")
        client.publish_suite(suite, release, archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as members:
            members.extractall(folder, filter="data")
    messages.print(f"publish it with: hf upload NAME {folder} --repo-type dataset", markup=False, soft_wrap=True)
    print(folder)


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


def nothing_tested(results: RunResults) -> str:
    """Why nothing could be tested, and what to change."""
    if any(cell.judgement != "too few images" for cell in results.cells):
        never = (
            "neither the release nor its reference is ever right in a cell with enough source images. Check the order "
            "of the classes, the label map, and the preprocessing."
        )
        return f"nothing could be tested: {results.untestable or never}"
    left_out = f" {results.left_out} counterfactuals have no usable prediction." if results.left_out else ""
    few = f"no cell has enough source images.{left_out} Freeze a suite of more images."
    return f"nothing could be tested: {few} {results.untestable}".rstrip()


def summary(results: RunResults) -> str:
    """The compared releases, and the number of cells per judgement."""
    counts = {name: sum(cell.judgement == name for cell in results.cells) for name in ORDER}
    baseline = "its own null arms"
    if results.baseline_model is not None and results.baseline_revision is not None:
        baseline = f"{results.baseline_model} ({results.baseline_revision[:REVISION_CHARACTERS]})"
    release = f"{results.model} ({results.revision[:REVISION_CHARACTERS]})"
    return (
        f"{release} against {baseline}, drops of more than {results.max_drop:g} points: "
        f"{counts['drop']} shown, {counts['held']} ruled out, {counts['undecided']} undecided, "
        f"{counts['too few images']} with too few images{'' if results.breaches else f'. {what_is_ruled_out(results)}'}"
    )


def what_is_ruled_out(results: RunResults) -> str:
    """Against the baseline, or the null arms: "No tested cell drops more than 27 points (95 % limit); 3 of 4 …"."""
    limit, tested = _limit(results), len(results.tested)
    drop = f"No tested cell drops more than {limit_in_words(limit, results.metric)}"
    counts = counts_tested(tested, len(results.cells) - tested)
    return f"{'No drop is ruled out' if limit >= 1 else drop}; {counts}"


def _limit(results: RunResults) -> float:
    """The largest drop in the intervals of all tested cells, 0 … 1."""
    losses = [1.0 if cell.interval is None else -cell.interval.low for cell in results.tested]
    return max([0.0, *losses]) if losses else 1.0


def run_sentence(results: RunResults) -> str:
    """The ids of the run and of its baseline, and the command that compares them."""
    if results.baseline is None:
        return f"Run {results.run}."
    command = f"contrafact compare {results.run} --other-job {results.baseline}"
    return f"Run {results.run}, baseline run {results.baseline}; {command} compares them."


def junit_document(results: RunResults, suite: str) -> bytes:
    """The comparison as JUnit XML (Jenkins' and pytest's shape): a test case for each cell.

    A breach is a failure with its sentence; a cell that is undecided or has too few images is skipped. If nothing was
    tested, one more case is an error. `suite`: the suite's name, which begins the class names of the cases.
    """
    document = ElementTree.Element("testsuites", name="contrafact gate")
    cases = [_case(cell, suite) for cell in results.cells]
    if results.shows_nothing:
        error = ElementTree.Element("testcase", classname=_text(suite), name="images", time="0")
        ElementTree.SubElement(error, "error", type="nothing tested", message=_text(nothing_tested(results)))
        cases.append(error)
    counts = {
        "failures": sum(cell.judgement == "drop" for cell in results.cells),
        "errors": int(results.shows_nothing),
        "skipped": sum(cell.judgement in SKIPPED for cell in results.cells),
    }
    attributes = {"tests": str(len(cases)), **{name: str(count) for name, count in counts.items()}, "time": "0"}
    element = ElementTree.SubElement(document, "testsuite", {"name": _text(suite), **attributes})
    element.append(_properties(results))
    element.extend(cases)
    ElementTree.indent(document)
    text: bytes = ElementTree.tostring(document, encoding="utf-8", xml_declaration=True)
    return text


def _properties(results: RunResults) -> ElementTree.Element:
    """What was compared."""
    values = {
        "suite": results.suite,
        "run": results.run,
        "model": results.model,
        "revision": results.revision,
        "baseline": results.baseline_model or "null arms",
        "baseline revision": results.baseline_revision or "",
        "max drop": f"{results.max_drop:g}",
        "ruled out": what_is_ruled_out(results),
    }
    properties = ElementTree.Element("properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=_text(value))
    return properties


def _case(comparison: CellComparison, suite: str) -> ElementTree.Element:
    method = comparison.method or "originals"
    case = ElementTree.Element(
        "testcase", classname=_text(f"{suite}.{method}"), name=_text(_cell_name(comparison)), time="0"
    )
    text = _text(comparison.sentence)
    if comparison.judgement == "drop":
        ElementTree.SubElement(case, "failure", type="drop", message=text).text = text
    elif comparison.judgement in SKIPPED:
        ElementTree.SubElement(case, "skipped", type=comparison.judgement, message=f"{comparison.judgement}: {text}")
    else:
        ElementTree.SubElement(case, "system-out").text = text
    return case


def _text(value: str) -> str:
    """A value without the characters that XML 1.0 forbids."""
    return NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", value)


def _cell_name(comparison: CellComparison) -> str:
    """The same in every run of a suite: "bus, time of day to night"."""
    cell = comparison.cell
    if cell is None:
        return "all counterfactuals" if comparison.method else "originals"
    return f"{class_in_words(cell)}, {factor_in_words(cell.factor, cell.value)} {cell.direction} {cell.value}"


def gate_markdown(results: RunResults, suite: str) -> str:
    """The verdict, the breaches in sentences, and a table of the cells: breaches first, then what is undecided."""
    lines = [f"## {_verdict(results, suite)}", "", plain(summary(results)) + ".", "", run_sentence(results), ""]
    lines += [f"* {sentence(breach)}" for breach in results.breaches]
    lines += [""] if results.breaches else []
    if results.shows_nothing:
        lines += [f"**Error:** {sentence(nothing_tested(results))}", ""]
    elif results.untestable or results.doubtful:
        lines += [sentence(f"{results.untestable} {results.doubtful}".strip()), ""]
    score = SCORE_WORDS[results.metric].score
    head = ["cell", "method", "judgement", score, "against", "difference", "95 % interval", "images"]
    cells = sorted(results.cells, key=lambda cell: ORDER.index(cell.judgement))
    lines += table(head, map(_row, cells[:MAX_ROWS]), numbers=5)
    if len(cells) > MAX_ROWS:
        lines += ["", f"{len(cells) - MAX_ROWS} more cells are in the JUnit file."]
    return "\n".join(lines) + "\n"


def _verdict(results: RunResults, suite: str) -> str:
    if results.shows_nothing:
        return f"❔ {plain(suite)}: nothing was tested"
    if not results.breaches:
        settled = f"{plain(suite)}: no drop of more than {results.max_drop:g} points is shown"
        drops = _open_drops(results)
        if drops:
            return f"❔ {settled}, but {drops}"
        if results.doubtful:
            return f"❔ {settled}, but it is in doubt"
        if not any(cell.judgement == "held" for cell in results.cells):
            return f"❔ {settled}, but none is ruled out in any cell"
        return f"{'✅' if _limit(results) <= max(SMALL_LOSS, results.max_drop / 100) else '❔'} {settled}"
    count = len(results.breaches)
    return f"❌ {plain(suite)}: {count} drop{'s' if count > 1 else ''} of more than {results.max_drop:g} points"


def _open_drops(results: RunResults) -> str:
    """Cells that may well drop more: "2 cells may drop more: 1 undecided, 1 with too few images"; "" without any."""
    suspected = [
        cell.judgement
        for cell in results.cells
        if cell.judgement in SKIPPED
        and cell.difference < 0
        and is_suspected(cell.difference, cell.interval, cell.sources, results.max_drop / 100)
    ]
    if not suspected:
        return ""
    counts = [(suspected.count("undecided"), "undecided"), (suspected.count("too few images"), "with too few images")]
    listed = ", ".join(f"{count} {words}" for count, words in counts if count)
    return f"{len(suspected)} cell{'' if len(suspected) == 1 else 's'} may drop more: {listed}"


def _row(cell: CellComparison) -> list[str]:
    return [
        plain(_cell_name(cell)),
        plain(cell.method),
        f"**{cell.judgement}**" if cell.judgement == "drop" else cell.judgement,
        percent(cell.accuracy.value),
        percent(cell.against.value),
        points(cell.difference),
        interval(cell.selected_interval or cell.interval),
        str(cell.sources),
    ]
