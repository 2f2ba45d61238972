"""The public contract of marks: whether people see a finding's value in the job's own images."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from shared.schemas.base import Contract

ShownMark = Literal["yes", "no", "unsure"]
LONGEST_MARKED_VALUE = 300


class MarkRequest(Contract):
    """`PUT /jobs/{job}/own-images/{image}`: does a source image show the value of a finding?"""

    model_config = ConfigDict(json_schema_extra={"examples": [{"factor": "weather", "value": "night", "shows": "yes"}]})

    factor: Annotated[str, Field(min_length=1, max_length=20, description="the factor of the finding")]
    value: Annotated[str, Field(min_length=1, max_length=LONGEST_MARKED_VALUE, description="the value of the finding")]
    shows: Annotated[ShownMark, Field(description="does the image show the value?")]


class MarkView(MarkRequest):
    """A mark. `image`: digest. `reviewer` is the id of an API key, or `local` without authentication."""

    image: str
    reviewer: str
    marked_at: datetime


class ImageToMark(Contract):
    """A source image of a job, by digest, with its marks for one value."""

    image: str
    file_name: str
    marks: list[MarkView]


class ValueToMark(Contract):
    """A value with findings in these classes, and the images to mark for it, in random order."""

    factor: str
    value: str
    classes: list[str]
    images: list[ImageToMark]


class OwnImagesView(Contract):
    """`GET /jobs/{job}/own-images`: what to mark for the findings of the job's report, and all marks of these."""

    job: str
    values: list[ValueToMark]
