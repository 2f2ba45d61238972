"""The error document of the gateway and of every model service."""

from __future__ import annotations

from pydantic import ConfigDict

from shared.schemas.base import Contract


class ProblemDocument(Contract):
    """An error (RFC 9457). `detail` says what is wrong and what to change."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
