"""What users import and run: `test`, the client of the public API and the command line.

    from contrafact import Client, JobRequest, ManifestImage, test

The client's methods take the request classes listed here and raise subclasses of `Problem`.
"""

from __future__ import annotations

from contrafact.async_client import AsyncClient
from contrafact.client import Client, Unreachable
from contrafact.outcome import Finding, Gallery, Outcome, OutcomeVerdict
from contrafact.testing import JobFailed, test
from shared.problems import Problem
from shared.schemas.comparisons import ComparisonChoice
from shared.schemas.effects import DoseRequest
from shared.schemas.exports import Release
from shared.schemas.finding_notes import FindingNoteRequest
from shared.schemas.jobs import JobRequest, JobSpec, ManifestImage, MethodChoice
from shared.schemas.models import ModelSpec, Preprocessing
from shared.schemas.own_images import MarkRequest
from shared.schemas.repairs import RepairRequest
from shared.schemas.reviews import ConfirmationRequest, ReviewRequest
from shared.schemas.studies import Question, StudyRequest
from shared.schemas.suites import SuiteFilters, SuiteRequest

__all__ = [
    "AsyncClient",
    "Client",
    "ComparisonChoice",
    "ConfirmationRequest",
    "DoseRequest",
    "Finding",
    "FindingNoteRequest",
    "Gallery",
    "JobFailed",
    "JobRequest",
    "JobSpec",
    "ManifestImage",
    "MarkRequest",
    "MethodChoice",
    "ModelSpec",
    "Outcome",
    "OutcomeVerdict",
    "Preprocessing",
    "Problem",
    "Question",
    "Release",
    "RepairRequest",
    "ReviewRequest",
    "StudyRequest",
    "SuiteFilters",
    "SuiteRequest",
    "Unreachable",
    "test",
]
