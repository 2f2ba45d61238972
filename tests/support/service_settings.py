"""Settings of a model service in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.service.settings import ServiceSettings


def settings(profile: Path, **changes: Any) -> ServiceSettings:
    """The service of this profile, on one thread of the processor."""
    return ServiceSettings(profile=str(profile), device="cpu", threads=1, **changes)
