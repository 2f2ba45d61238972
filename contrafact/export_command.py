"""`contrafact export`: a job's images with labels and provenance, saved as one archive."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrafact.command_line import URL, JobId, Key, Url, messages, open_client, writing
from contrafact.job_files import parse_pair
from shared.schemas.exports import FormatName

if TYPE_CHECKING:
    from contrafact.content_credentials import ImageSigner

C2PA_KEY = "CONTRAFACT_C2PA_KEY"


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
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--c2pa",
            metavar="CHAIN",
            exists=True,
            dir_okay=False,
            help=f"sign generated images (C2PA): your certificate and its issuers, PEM; the key's PEM is in {C2PA_KEY}",
        ),
    ] = None,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Save originals, accepted counterfactuals and null arms as a tar, and print its path."""
    path = out or Path(f"contrafact-{job}-{format_name}.tar")
    with open_client(url, api_key) as client:
        query = [("format", format_name), *(parse_pair(text) for text in where or [])]
        signer = None if certificate is None else _signer(certificate, path, format_name)
        if str(path) == "-":
            client.export(job, query, sys.stdout.buffer)
            return
        partial_file, signed_file = (path.with_name(f"{path.name}.{ending}") for ending in ("part", "signed.part"))
        with writing(path):
            try:
                with partial_file.open("wb") as file:
                    client.export(job, query, file)
                if signer is not None:
                    _sign(partial_file, signed_file, signer)
                partial_file.replace(path)
            finally:
                partial_file.unlink(missing_ok=True)
                signed_file.unlink(missing_ok=True)
    print(path)


def _signer(certificate: Path, out: Path, format_name: FormatName) -> ImageSigner:
    """Raises ValueError if these images cannot be signed."""
    if find_spec("c2pa") is None:
        raise ValueError("the library that signs is not installed; install Contrafact with its extra `c2pa`")
    if format_name == "huggingface" or str(out) == "-":
        raise ValueError("--c2pa signs image files: give --format folders, coco or fiftyone, and --out FILE")
    key = os.environ.get(C2PA_KEY, "")
    if not key:
        raise ValueError(f"set the environment variable {C2PA_KEY} to the certificate's private key in PEM")
    from contrafact.content_credentials import ImageSigner  # an extra, which this option alone needs

    return ImageSigner(certificate.read_bytes(), key.encode())


def _sign(exported: Path, signed: Path, signer: ImageSigner) -> None:
    """Sign the generated images of the tar `exported` in place, by way of the file `signed`."""
    from contrafact.content_credentials import sign_export

    count = sign_export(exported, signed, signer)
    signed.replace(exported)
    messages.print(f"{count} generated images signed")
