"""A job's parameters for the image checks, common to all methods whose images are checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.methods.recaption import Recaption
from gateway.methods.signals import SignalParameters


class CheckParameters(SignalParameters):
    """Thresholds of the image checks, and what else they compute."""

    recaption: Recaption = False
    thresholds: Annotated[
        dict[str, dict[str, float]],
        Field(description="Thresholds of image checks, by check and factor (or `default`); default: the profile's."),
    ] = Field(default_factory=dict)
    second_thresholds: Annotated[
        dict[str, dict[str, float]],
        Field(description="The same of the profile's second scorer, which changes no verdict; default: the profile's."),
    ] = Field(default_factory=dict)
