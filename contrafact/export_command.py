"""`contrafact export`: a job's images with labels and provenance, saved as one archive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from contrafact.command_line import URL, JobId, Key, Url, open_client, writing
from contrafact.job_files import parse_pair
from shared.schemas.exports import FormatName


def export(
    job: JobId,
    format_name: Annotated[FormatName, typer.Option("--format", help="layout of the archive")] = "folders",
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILTER=VALUE", help="method, factor, value, from, class, verdict, check, flipped, model, arm"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="default: contrafact-JOB-FORMAT.tar; - for stdout")
    ] = None,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Save originals, accepted counterfactuals and null arms as a tar, and print its path."""
    path = out or Path(f"contrafact-{job}-{format_name}.tar")
    with open_client(url, api_key) as client:
        query = [("format", format_name), *(parse_pair(text) for text in where or [])]
        if str(path) == "-":
            client.export(job, query, sys.stdout.buffer)
            return
        partial_file = path.with_name(f"{path.name}.part")
        with writing(path):
            try:
                with partial_file.open("wb") as file:
                    client.export(job, query, file)
                partial_file.replace(path)
            finally:
                partial_file.unlink(missing_ok=True)
    print(path)
