"""Methods of a job from JSON, for rows that tests write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.methods import JobMethod, read_method


def job_methods(choices: Sequence[Mapping[str, Any]]) -> list[JobMethod]:
    """Methods as a job's row has them, from JSON as requests have it."""
    return [read_method(choice["name"], choice["parameters"]) for choice in choices]
