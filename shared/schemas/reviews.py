"""The public contract of reviews: people's verdicts on counterfactuals."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from shared.schemas.base import Contract
from shared.schemas.effects import Cell
from shared.schemas.jobs import JobDetail
from shared.schemas.results import FailureMode

ReviewVerdict = Literal["valid", "invalid", "unsure"]
ConfirmingMethod = Literal["shifts", "dillema"]


class ReviewRequest(Contract):
    """`PUT /jobs/{job}/reviews/{counterfactual}`: your verdict on a counterfactual. Only `verdict` is required.

    For a changed image of a finding the verdict is on the pair: `valid` only if its arm (the same rendering without the
    change) is right, too. For the calibration sample it is on the counterfactual alone.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"verdict": "valid", "edit_shown": True, "realism": 4, "note": ""}]}
    )

    verdict: Annotated[
        ReviewVerdict,
        Field(description="is the ground truth still right in this image (of a finding: and in its null or sham arm)?"),
    ]
    edit_shown: Annotated[bool | None, Field(description="does the image show the edit?")] = None
    arm_shown: Annotated[
        bool,
        Field(
            description="whether you saw the null or sham arm, too, and the verdict is on both; only such reviews "
            "let an improvement stand"
        ),
    ] = False
    realism: Annotated[
        int | None, Field(ge=1, le=5, strict=True, description="from 1 (artificial) to 5 (like a photograph)")
    ] = None
    failure: Annotated[
        FailureMode | None,
        Field(description="what is wrong, by LANCE's failure modes (figure 12); the counterfactual is then not valid"),
    ] = None
    note: Annotated[str, Field(max_length=1_000, pattern=r"^[^\x00]*$")] = ""


class ReviewView(ReviewRequest):
    """A review. `reviewer` is the id of an API key, as the operator sees it, or `local` without authentication."""

    counterfactual: str
    reviewer: str
    reviewed_at: datetime


class ReviewsPage(Contract):
    """`GET /jobs/{job}/reviews`, newest first. `next` is the cursor of the following page, or null."""

    reviews: list[ReviewView]
    next: str | None


class ConfirmationRequest(Contract):
    """`POST /jobs/{job}/confirmation`. `shifts` for findings of `dillema`, `dillema` for those of other methods."""

    confirm_with: ConfirmingMethod = "shifts"


class NotTested(Contract):
    """A finding of `model` and `method` that the confirming job does not test again, and why."""

    model: str
    method: str
    cell: Cell
    reason: str


class ConfirmationJob(JobDetail):
    """The job that tests findings again. `not_tested`: the findings that it leaves out."""

    not_tested: list[NotTested] = Field(default_factory=list)
