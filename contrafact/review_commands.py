"""`contrafact review` and `contrafact reviews`: people's reviews of counterfactuals."""

from __future__ import annotations

from typing import Annotated

import typer

from contrafact import printing
from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output
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
    realism: Annotated[int | None, typer.Option(help="from 1 (artificial) to 5 (like a photograph)")] = None,
    note: str = "",
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Review a counterfactual. Replaces your earlier review. The review page shows images side by side."""
    with open_client(url, api_key) as client:
        fields = {"verdict": verdict, "edit_shown": edit_shown, "realism": realism, "note": note}
        view = client.review(job, counterfactual, ReviewRequest.model_validate(fields))
        if as_json:
            print(view.model_dump_json())
        else:
            messages.print(f"{view.counterfactual} is {view.verdict}, reviewed by {view.reviewer}")


def reviews(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the reviews of a job, newest first. With --json, one JSON object per line."""
    with open_client(url, api_key) as client:
        views = client.reviews(job)
        if as_json:
            for view in views:
                print(view.model_dump_json())
        else:
            print_output(printing.reviews(views))
