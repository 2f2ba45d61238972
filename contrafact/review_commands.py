"""`contrafact review`, `reviews`, `mark` and `own-images`: what people see in counterfactuals and own images.

`contrafact note` and `contrafact notes`: status and note of each finding.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from contrafact import printing
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output, print_rows
from shared.schemas.finding_notes import FindingNoteRequest
from shared.schemas.own_images import MarkRequest
from shared.schemas.results import FAILURE_MODES
from shared.schemas.reviews import ReviewRequest

CounterfactualId = Annotated[
    str, typer.Argument(help="a counterfactual's id, from `results --json`", metavar="COUNTERFACTUAL")
]


def review(
    job: JobId,
    counterfactual: CounterfactualId,
    verdict: Annotated[str, typer.Option(help="is the ground truth still right? valid, invalid or unsure")],
    edit_shown: Annotated[
        bool | None, typer.Option("--edit-shown/--edit-not-shown", help="does the image show the edit?")
    ] = None,
    arm_shown: Annotated[
        bool, typer.Option("--with-arm", help="you saw the null or sham arm, too, and the verdict is on both")
    ] = False,
    realism: Annotated[int | None, typer.Option(help="from 1 (artificial) to 5 (like a photograph)")] = None,
    failure: Annotated[
        str | None, typer.Option(help=f"what is wrong, if anything: {', '.join(FAILURE_MODES)}; it is then not valid")
    ] = None,
    note: str = "",
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Review a counterfactual. Replaces your earlier review. The review page shows images side by side."""
    with open_client(url, api_key) as client:
        fields = {
            "verdict": verdict,
            "edit_shown": edit_shown,
            "arm_shown": arm_shown,
            "realism": realism,
            "failure": failure,
            "note": note,
        }
        view = client.review(job, counterfactual, ReviewRequest.model_validate(fields))
        if as_json:
            print(view.model_dump_json())
        else:
            messages.print(f"{view.counterfactual} is {view.verdict}, reviewed by {view.reviewer}")


def reviews(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the reviews of a job, newest first. With --json, one JSON object per line."""
    with open_client(url, api_key) as client:
        print_rows(client.reviews(job), as_json, printing.reviews)


def mark(
    job: JobId,
    image: Annotated[str, typer.Argument(help="a source image's digest, from `own-images --json`", metavar="IMAGE")],
    factor: Annotated[str, typer.Option(help="the factor of the finding, such as weather")],
    value: Annotated[str, typer.Option(help="the value of the finding, such as night")],
    shows: Annotated[str, typer.Option(help="does the image show the value? yes, no or unsure")],
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Say whether one of your own images shows the value of a finding. `report --anew` compares with these marks."""
    with open_client(url, api_key) as client:
        fields = {"factor": factor, "value": value, "shows": shows}
        view = client.mark(job, image, MarkRequest.model_validate(fields))
        if as_json:
            print(view.model_dump_json())
        else:
            messages.print(f"{view.image}: {view.value} {view.shows}, marked by {view.reviewer}", markup=False)


def own_images(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the source images to mark for the findings of a job, with their marks."""
    with open_client(url, api_key) as client:
        view = client.own_images(job)
        print_output(view.model_dump_json() if as_json else printing.own_images(view))


class Status(StrEnum):
    """What people decided about a finding; `none` removes the status."""

    confirmed = "confirmed"
    artefact = "artefact"
    fixed = "fixed"
    known = "known"
    none = "none"


FindingId = Annotated[str, typer.Argument(help="a finding's id, from `notes`", metavar="FINDING")]


def note(
    job: JobId,
    finding: FindingId,
    text: Annotated[str, typer.Argument(help="a free note", metavar="NOTE")] = "",
    status: Annotated[Status, typer.Option(help="what you decided about the finding")] = Status.none,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Set the status and the note of a finding. Replaces earlier ones; without both, removes them.

    Pages show them at once. Run `contrafact report JOB --anew` to add them to the report.
    """
    with open_client(url, api_key) as client:
        fields = {"status": None if status is Status.none else status.value, "note": text}
        view = client.note_finding(job, finding, FindingNoteRequest.model_validate(fields))
        if as_json:
            print(view.model_dump_json())
        else:
            cell = view.effect.cell
            shown = view.effect.note.status or "noted" if view.effect.note else "without a note"
            messages.print(f"{cell.label}, {cell.direction} {cell.value} ({view.model}) is {shown}", markup=False)


def notes(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the findings of a job with id, status and note. With --json, one JSON object per line."""
    with open_client(url, api_key) as client:
        print_rows(client.findings(job).findings, as_json, printing.noted_findings)
