"""The public contract of uploaded images."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.schemas.base import Contract


class ImageView(Contract):
    """An uploaded image. `digest` names its canonical pixels, `upload` the uploaded bytes; `GET` understands both."""

    digest: str
    upload: str
    width: int
    height: int
    bytes: Annotated[int, Field(description="size of the lossless PNG that is kept")]
    scaled_from: Annotated[
        tuple[int, int] | None,
        Field(description="width and height of the uploaded file if it was scaled down to the working side"),
    ] = None
