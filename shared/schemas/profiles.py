"""The contract of `GET /profiles`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.schemas.base import Contract


class ProfileView(Contract):
    """A profile: which weights each service loads."""

    name: str
    description: str
    active: Annotated[bool, Field(description="whether this installation runs it")]
    methods: list[str]
    models: list[str]
    weights: dict[str, str]
    domain: Annotated[str, Field(description="the only images that its models know; empty if they take all")] = ""
    calibrations: Annotated[list[str], Field(description="data sets on which the errors of the checks were measured")]


class ProfilesReply(Contract):
    """`GET /profiles`."""

    profiles: list[ProfileView]
