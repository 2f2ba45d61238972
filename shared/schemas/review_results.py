"""What reviews show about the checks and about failures, in the results of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from shared.schemas.base import Contract
from shared.schemas.effects import CheckErrors, Judges
from shared.schemas.estimates import Estimate, Rate

# LANCE's failure modes (figure 12), in its order.
FailureMode = Literal["unlikely_label", "meaningless_edit", "poor_image", "changed_label", "bias"]
FAILURE_MODES: Mapping[FailureMode, str] = {
    "unlikely_label": "unlikely for its class",
    "meaningless_edit": "meaningless change",
    "poor_image": "poor image",
    "changed_label": "the change took the class away",
    "bias": "the generator's bias: it changed more, by a stereotype",
}


def _by_method(errors: object) -> object:
    """Errors by method and factor. Reports of older versions have them by factor, measured with DILLEMA."""
    if isinstance(errors, dict) and any("valid" in counts for counts in errors.values()):
        return {"dillema": errors}
    return errors


class Calibration(Contract):
    """The source of validity estimates: reviews of this job, or the checks' errors measured on another data set.

    `errors` are by method and factor (or `default`), `classes` by method and class, measured on `n` counterfactuals of
    the data set `data` that `judged_by` judged; empty if the job names no data set. With `source` "reviews", `n` is the
    number of this job's reviewed counterfactuals. `not_used`: why the errors of `data` are not used; empty if they are.
    """

    source: Literal["profile", "reviews"] = "profile"
    data: str = ""
    judged_by: Judges = "people"
    errors: Annotated[dict[str, dict[str, CheckErrors]], BeforeValidator(_by_method)] = Field(default_factory=dict)
    classes: dict[str, dict[str, CheckErrors]] = Field(default_factory=dict)
    n: int = 0
    not_used: str = ""

    @property
    def corrects(self) -> bool:
        """Whether the effects of some method are corrected for invalid counterfactuals."""
        return self.source == "reviews" or bool(self.errors)


class FlippedReviews(Contract):
    """Validity of the accepted counterfactuals on which one model under test flipped: whether failures are real.

    `reviewed` of the `flipped` ones have a review. `valid` is P(valid | flipped); `of_valid` the share of valid ones on
    which it flipped, P(flipped and valid) / P(valid).
    """

    model: str
    reviewed: int
    flipped: int
    valid: Estimate | None
    of_valid: Estimate | None


class FailureShare(Contract):
    """The share of accepted counterfactuals with a failure mode, of those that were sampled at random and reviewed."""

    mode: FailureMode
    share: Rate

    @property
    def words(self) -> str:
        """The mode, for people."""
        return FAILURE_MODES[self.mode]


class MethodReviews(Contract):
    """Reviews of the counterfactuals of one method.

    `accepted` and `rejected`: how many of each were reviewed as valid or invalid; `undecided`: unsure, or reviewers
    disagree. `by_lot` of the accepted ones were sampled at random and represent the others; `more` such reviews (of
    rejected ones: `more_rejected`) are needed before estimates can be given; until then they are None.
    `prediction_powered` is P(valid) of accepted ones from the sample and a judge's scores of all of them (`validity`,
    or the vision-language judge); None without a judge or with fewer than 20 sampled source images.
    `valid` is P(valid) of accepted ones, `valid_rejected` of rejected ones; `accepted_if_valid` and
    `accepted_if_invalid` are the checks' own error rates. `edit_shown` and `realism` (mean of `graded`, 1 to 5) are
    those of randomly sampled accepted ones. So are `failures`, by mode, the most frequent one first; a counterfactual
    with a failure mode is not valid. Missing if there are none.
    """

    method: str
    accepted: int
    rejected: int
    undecided: int
    by_lot: int
    more: int
    more_rejected: int
    prediction_powered: Estimate | None = None
    valid: Estimate | None
    valid_rejected: Estimate | None
    accepted_if_valid: Estimate | None
    accepted_if_invalid: Estimate | None
    flipped: list[FlippedReviews]
    edit_shown: Rate | None
    realism: float | None
    graded: int
    failures: Annotated[list[FailureShare], Field(exclude_if=lambda shares: not shares)] = Field(default_factory=list)
