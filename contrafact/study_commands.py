"""`contrafact study`: people rate counterfactuals of a job; their links, items, answers and results."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer
from pydantic import JsonValue
from pydantic_core import from_json
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from contrafact.caption_labels import caption_edits, captions_csv, label_table, read_labels
from contrafact.client import Client
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output, writing
from shared.schemas.effects import Estimate, Rate
from shared.schemas.studies import Agreement, Paper, QuestionFigures, Side, StudyRequest, StudyResults
from shared.words.wording import percent

DEFAULTS = StudyRequest()

study = typer.Typer(help="Human studies: create, invite, results, items, answers, delete.", no_args_is_help=True)
StudyId = Annotated[str, typer.Argument(help="a study's id", metavar="STUDY")]
File = Annotated[Path | None, typer.Option("--out", "-o", help="save to this file; default: stdout")]


@study.command()
def create(
    job: JobId,
    questions: Annotated[
        str, typer.Option(help="dillema, lance, or a JSON file with your own (docs/how-to/study.md)")
    ] = str(DEFAULTS.questions),
    title: Annotated[str, typer.Option(help="shown to raters; default: the task description")] = DEFAULTS.title,
    method: Annotated[list[str] | None, typer.Option(help="default: all of the job; may be repeated")] = None,
    sample: Annotated[str, typer.Option(help="accepted edits, rendered, or misclassified")] = DEFAULTS.sample,
    model: Annotated[str | None, typer.Option(help="misclassified by this model; default: by any")] = None,
    element: Annotated[
        str | None, typer.Option(help="ask about this class, in images that show it; gives no reviews")
    ] = None,
    per_method: Annotated[int, typer.Option(help="edits of each method")] = DEFAULTS.per_method,
    per_factor: Annotated[
        int | None, typer.Option(help="edits of each factor instead; results are by factor, too")
    ] = None,
    raters_per_item: Annotated[int, typer.Option(help="ratings of each edit")] = DEFAULTS.raters_per_item,
    items_per_rater: Annotated[int, typer.Option(help="edits of each rater")] = DEFAULTS.items_per_rater,
    consensus: Annotated[
        float, typer.Option(help="share of an edit's raters who must agree; 0.8: four of five")
    ] = DEFAULTS.consensus,
    controls: Annotated[int, typer.Option(help="control items of each rater")] = DEFAULTS.controls,
    attention: Annotated[int, typer.Option(help="attention checks of each rater")] = DEFAULTS.attention,
    least_control_score: Annotated[
        float, typer.Option(help="raters with a smaller share of correct control items are left out")
    ] = DEFAULTS.least_control_score,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Sample counterfactuals of a finished job for people to rate. Prints the study's id."""
    with open_client(url, api_key) as client:
        fields = {"questions": _questions(questions), "title": title, "methods": method or None, "sample": sample}
        fields |= {"per_method": per_method, "raters_per_item": raters_per_item, "items_per_rater": items_per_rater}
        fields |= {"element": element, "consensus": consensus, "controls": controls, "attention": attention}
        fields |= {"least_control_score": least_control_score, "per_factor": per_factor, "model": model}
        view = client.create_study(job, StudyRequest.model_validate(fields))
        messages.print(f"{view.items} edits, and for each rater {sum(view.control_items.values())} control items")
        print(view.model_dump_json() if as_json else view.id)


@study.command("list")
def list_studies(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the studies of a job, newest first."""
    with open_client(url, api_key) as client:
        for view in client.studies(job).studies:
            words = f"{view.complete} of {view.items} edits complete, {view.finished} of {view.invited} raters finished"
            print(view.model_dump_json() if as_json else f"{view.id}  {words}")


@study.command()
def invite(
    study_id: StudyId,
    raters: Annotated[int, typer.Option(help="how many people")] = 1,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Print a link for each new rater. Links are secret and shown once."""
    with open_client(url, api_key) as client:
        reply = client.invite_raters(study_id, raters)
        for invitation in reply.invitations:
            print(invitation.model_dump_json() if as_json else client.rating_page_of(invitation.link))


@study.command()
def results(study_id: StudyId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """Print agreement, and the answers by question and method."""
    with open_client(url, api_key) as client:
        figures = client.study_results(study_id)
        print_output(figures.model_dump_json() if as_json else result_tables(figures))


@study.command()
def items(
    study_id: StudyId,
    images: Annotated[Path | None, typer.Option(help="save the images to this folder, too")] = None,
    out: File = None,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Save the items as CSV, for a crowd platform."""
    with open_client(url, api_key) as client:
        data = client.study_items(study_id)
        _write(data, out)
        if images is not None:
            _save_images(client, study_id, data, images)


@study.command()
def answers(
    study_id: StudyId,
    upload: Annotated[Path | None, typer.Option(help="store the ratings of this CSV file")] = None,
    out: File = None,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Save all ratings as CSV, or store those of a file."""
    with open_client(url, api_key) as client:
        if upload is None:
            _write(client.study_answers(study_id), out)
        else:
            stored = client.upload_study_answers(study_id, upload.read_bytes())
            messages.print(stored.sentence)


@study.command()
def captions(
    job: JobId,
    per_factor: Annotated[int, typer.Option(min=1, help="edits of each type, randomly sampled")] = 100,
    labels: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="the file with your labels")] = None,
    out: File = None,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Save caption edits as CSV to label by hand or, with --labels, print LANCE's Table 3 from it."""
    with open_client(url, api_key) as client:
        views = list(client.counterfactuals(job, {}))
        if labels is None:
            _write(captions_csv(caption_edits(views, per_factor)).encode(), out)
        else:
            print_output(label_table(read_labels(labels.read_text(encoding="utf-8-sig"), views)))


@study.command()
def delete(study_id: StudyId, url: Url = URL, api_key: Key = "") -> None:
    """Delete a study with its links and answers, and the reviews that its consensus gave."""
    with open_client(url, api_key) as client:
        client.delete_study(study_id)
        messages.print(f"study {study_id} is deleted")


def result_tables(results: StudyResults) -> RenderableType:
    """The results as the papers print them: a line per question and method."""
    excluded = sum(rater.excluded for rater in results.raters)
    heads = ("question", "method", "edits", "yes / mean", "95 %", "no", "undecided", "yes of decided", "yes of answers")
    table = Table(*heads, "α", "95 %", box=None)
    for row in results.figures:
        agreement = results.agreement[row.question]
        table.add_row(
            row.question, f"{row.method} {row.factor}".rstrip(), str(row.items), *_figures(row), *_alpha(agreement)
        )
    lines = [
        f"{results.complete} of {results.items} edits are rated by enough raters; "
        f"{excluded} of {len(results.raters)} raters are left out because of their control items."
    ]
    if results.dropped_controls:
        lines.append(f"{len(results.dropped_controls)} null arms judge no rater: most raters find them invalid.")
    return Group(table, *map(Text, lines))


def _questions(text: str) -> JsonValue:
    """The name of a paper, or the questions of a JSON file. Raises ValueError."""
    if text in get_args(Paper):
        return text
    if not Path(text).is_file():
        raise ValueError(f"--questions {text!r} is neither {' nor '.join(get_args(Paper))} nor a file")
    questions: JsonValue = from_json(Path(text).read_bytes())
    return questions


def _figures(row: QuestionFigures) -> tuple[str, str, str, str, str, str]:
    if row.yes is not None and row.yes.n > 0 and row.decided is not None:
        counts = str(row.no), str(row.undecided)
        answers = "" if row.answers is None else percent(row.answers.value)
        return percent(row.yes.value), _range(row.yes), *counts, percent(row.decided.value), answers
    if row.no is not None and row.yes is None:
        modes = "; ".join(f"{failure.words} {percent(failure.share.value)}" for failure in row.failures)
        return modes, "", str(row.no), str(row.undecided), "", ""
    if row.mean is not None:
        return f"{row.mean.value:.2f}", f"{row.mean.low:.2f} to {row.mean.high:.2f}", "", "", "", ""
    return "", "", "", "", "", ""


def _range(rate: Rate | Estimate) -> str:
    return f"{percent(rate.low)} to {percent(rate.high)}"


def _alpha(agreement: Agreement) -> tuple[str, str]:
    if agreement.alpha is None:
        return "–", ""
    interval = "" if agreement.low is None else f"{agreement.low:.2f} to {agreement.high:.2f}"
    return f"{agreement.alpha:.2f}", interval


def _save_images(client: Client, study_id: str, data: bytes, folder: Path) -> None:
    for row in csv.DictReader(io.StringIO(data.decode())):
        for side in get_args(Side):
            path = folder / f"{row['item']}-{side}.png"
            image = client.study_image(study_id, row["item"], side)
            with writing(path):
                path.write_bytes(image)
    messages.print(f"images are saved to {folder}", markup=False)


def _write(data: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(data.decode())
    else:
        with writing(out):
            out.write_bytes(data)
        print(out)
