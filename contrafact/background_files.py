"""Background images of the command line: uploads them, and names them in the parameters of method `compose`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue
from rich.console import Console

from contrafact.client import Client
from contrafact.job_files import upload_images
from contrafact.testset_files import gather
from shared.schemas.compositions import MOST_BACKGROUNDS
from shared.schemas.jobs import MethodChoice

METHOD = "compose"


def with_backgrounds(
    client: Client, methods: Sequence[MethodChoice], folder: Path | None, console: Console, *, dry_run: bool
) -> list[MethodChoice]:
    """The methods; `compose` gets the images of the folder as backgrounds, uploaded unless it is a dry run.

    The value of a background is the name of its folder; one that lies in `folder` itself has none, and is named by its
    caption. Raises ValueError if no method is `compose`, or if there are more images than a job takes.
    """
    if folder is None:
        return list(methods)
    if METHOD not in [method.name for method in methods]:
        raise ValueError("--backgrounds are for the method compose; add --method compose")
    files = gather([folder]).images
    if len(files) > MOST_BACKGROUNDS:
        raise ValueError(
            f"{folder} has {len(files)} images, and a job takes {MOST_BACKGROUNDS} backgrounds; choose some"
        )
    if dry_run:
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for _, path in files]
    else:
        digests = upload_images(client, files, console)
    of_digest = dict(zip(digests, (path for _, path in files), strict=True))
    backgrounds: list[JsonValue] = [
        {"digest": digest, "value": _value(path, folder)} for digest, path in of_digest.items()
    ]
    return [
        method.model_copy(update={"parameters": {**method.parameters, "backgrounds": backgrounds}})
        if method.name == METHOD
        else method
        for method in methods
    ]


def _value(path: Path, folder: Path) -> str:
    if path.parent == folder:
        return ""
    return " ".join(path.parent.name.replace("_", " ").replace("-", " ").split())
