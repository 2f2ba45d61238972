"""A trial's page: every step with its pictures, which lie beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.report.page import ASSETS, environment
from gateway.trial.steps import Step

TEMPLATES = Path(__file__).parent / "templates"


def trial_page(steps: Sequence[Step], profile: str) -> str:
    """The page of a trial with a profile of this name."""
    return (
        environment(TEMPLATES)
        .get_template("trial.html")
        .render(
            steps=steps,
            profile=profile,
            style=(ASSETS / "contrafact.css").read_text(encoding="utf-8"),
            faults=sum(bool(step.fault) for step in steps),
            seconds=sum(step.seconds or 0.0 for step in steps),
        )
    )
