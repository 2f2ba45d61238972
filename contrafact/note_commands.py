"""`contrafact note` and `contrafact notes`: status and note of each finding."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from contrafact import printing
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output
from shared.schemas.finding_notes import FindingNoteRequest


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
        views = client.findings(job).findings
        if as_json:
            for view in views:
                print(view.model_dump_json())
        else:
            print_output(printing.noted_findings(views))
