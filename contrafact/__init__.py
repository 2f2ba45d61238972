"""What users import and run: the client of the public API and the command line.

    from contrafact import Client, JobRequest, ManifestImage

The client's methods take the request classes listed here and raise subclasses of `Problem`.
"""

from __future__ import annotations

from contrafact.client import Client, Unreachable
from shared.problems import Problem
from shared.schemas.doses import DoseRequest
from shared.schemas.jobs import JobRequest, JobSpec, ManifestImage, MethodChoice
from shared.schemas.models import ModelSpec
from shared.schemas.repairs import RepairRequest
from shared.schemas.reviews import ConfirmationRequest, ReviewRequest
from shared.schemas.suites import SuiteRequest

__all__ = [
    "Client",
    "ConfirmationRequest",
    "DoseRequest",
    "JobRequest",
    "JobSpec",
    "ManifestImage",
    "MethodChoice",
    "ModelSpec",
    "Problem",
    "RepairRequest",
    "ReviewRequest",
    "SuiteRequest",
    "Unreachable",
]
