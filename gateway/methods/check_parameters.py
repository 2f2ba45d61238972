"""A job's parameters for the image checks, common to all methods whose images are checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.methods.counterfactual import Thresholds
from gateway.methods.validity import SignalParameters
from shared.schemas.thresholds import ImageThresholds


class CheckParameters(SignalParameters):
    """Thresholds of the image checks, and what else they compute."""

    recaption: Annotated[
        bool,
        Field(description="Caption each rendered image; its caption must name the class (one more call per image)."),
    ] = False
    thresholds: Annotated[
        ImageThresholds,
        Field(description="Thresholds of image checks, by check and factor (or `default`); default: the profile's."),
    ] = Field(default_factory=dict)
    arm_thresholds: Annotated[
        ImageThresholds | None,
        Field(
            description="Thresholds at which null and sham arms are judged; null: those of edits. With a calibration: "
            "the profile's, and the calibration's where it has some for the same check."
        ),
    ] = None
    second_thresholds: Annotated[
        ImageThresholds,
        Field(description="The same of the profile's second scorer, which changes no verdict; default: the profile's."),
    ] = Field(default_factory=dict)

    @property
    def thresholds_for_arms(self) -> Thresholds:
        """The thresholds of null and sham arms. A calibration may leave edits only `validity`, which no arm has."""
        return self.thresholds if self.arm_thresholds is None else self.arm_thresholds
