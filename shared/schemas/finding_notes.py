"""What people decided about a finding: a status and a free note, kept with the job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from shared.schemas.base import Contract

# confirmed: a fault of the model; artefact: caused by the images; fixed: in a later model; known: accepted as it is.
FindingStatus = Literal["confirmed", "artefact", "fixed", "known"]


class FindingNoteRequest(Contract):
    """`PUT /jobs/{job}/findings/{finding}`: your status and note. Without both, the stored ones are removed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"status": "confirmed", "note": "night buses look like trucks; see ticket 12"}]}
    )

    status: Annotated[
        FindingStatus | None,
        Field(description="confirmed: the model is at fault; artefact: the images are; fixed; known and accepted"),
    ] = None
    note: Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00]*$")] = ""


class FindingNote(FindingNoteRequest):
    """A stored status and note. `author` wrote it last: the id of an API key, or `local` without authentication."""

    author: str
    noted_at: datetime
