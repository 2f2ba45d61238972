"""The public contract of a job's findings, each with its id, status and note."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.effects import CellEffect


class FindingView(Contract):
    """A finding of one model under one method. `effect.note` has its status and note."""

    id: Annotated[str, Field(description="made from model, method and cell, so a rebuilt report keeps it")]
    model: str
    method: str
    effect: CellEffect


class FindingsListing(Contract):
    """`GET /jobs/{job}/findings`: weaknesses first under each model and method; empty without a report."""

    findings: list[FindingView]
