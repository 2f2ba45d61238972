"""`contrafact review` and `contrafact reviews`: what people see in counterfactuals."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from contrafact import printing
from contrafact.command_line import URL, JobId, Json, Key, Url, connected, messages
from shared.schemas.reviews import ReviewRequest

CounterfactualId = Annotated[str, typer.Argument(help="its id, as `results --json` has it", metavar="COUNTERFACTUAL")]


def review(
    job: JobId,
    counterfactual: CounterfactualId,
    verdict: Annotated[str, typer.Option(help="is the ground truth still right in it? valid, invalid or unsure")],
    edit_shown: Annotated[
        bool | None, typer.Option("--edit-shown/--edit-not-shown", help="does it show what was to be changed?")
    ] = None,
    realism: Annotated[int | None, typer.Option(help="from 1, no camera took this, to 5, a photograph")] = None,
    note: str = "",
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Say what you see in a counterfactual; replaces what you said before. The pages show them side by side."""
    with connected(url, api_key) as client:
        said = {"verdict": verdict, "edit_shown": edit_shown, "realism": realism, "note": note}
        view = client.review(job, counterfactual, ReviewRequest.model_validate(said))
        if as_json:
            print(view.model_dump_json())
        else:
            messages.print(f"{view.counterfactual} is {view.verdict}, as {view.reviewer} sees it")


def reviews(job: JobId, as_json: Json = False, url: Url = URL, api_key: Key = "") -> None:
    """List the reviews of a job, newest first; with --json, one JSON object a line."""
    with connected(url, api_key) as client:
        views = client.reviews(job)
        if as_json:
            for view in views:
                print(view.model_dump_json())
        else:
            Console(width=None if sys.stdout.isatty() else 160).print(printing.reviews(views))
