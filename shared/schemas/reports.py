"""The report of a job as data: what its page shows, as `GET /jobs/{job}/report?format=json` returns it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.effects import Cell
from shared.schemas.results import CounterfactualView, JobResults

ReportFormat = Literal["html", "md", "json"]


class FindingPictures(Contract):
    """The ids of the counterfactuals that the report shows for a finding, or for the first drop of an open verdict."""

    model: str
    method: str
    cell: Cell
    counterfactuals: list[str]


class ReportPictures(Contract):
    """Which counterfactuals the report shows, by id.

    `hero` is the page's first picture: of the strongest finding that has pictures, or of the strongest flip;
    `hero_model` is the model under test whose predictions stand below it. The `gallery` is not selected by outcome.
    """

    hero: str | None
    hero_model: str | None
    findings: list[FindingPictures]
    gallery: list[str]
    rejected: list[str]

    @property
    def ids(self) -> list[str]:
        """Every id once."""
        in_findings = [id for finding in self.findings for id in finding.counterfactuals]
        return list(dict.fromkeys([*([self.hero] if self.hero else []), *in_findings, *self.gallery, *self.rejected]))


class JobReport(Contract):
    """The data of the report's page: figures, which counterfactuals it shows, and these with their image digests."""

    results: JobResults
    pictures: ReportPictures
    counterfactuals: Annotated[list[CounterfactualView], Field(description="each of the pictures once, in their order")]
