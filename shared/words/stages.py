"""Describe the progress of a job in words, for terminals and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from shared.schemas.jobs import JobStage, Progress, Stage

STAGES: Mapping[JobStage, str] = {
    "waiting": "waiting for a worker",
    "starting": "waiting for the services",
    "captioning": "captioning",
    "proposing": "proposing edits",
    "rendering": "rendering",
    "checking": "checking",
    "predicting": "predicting",
    "analysing": "analysing",
}


def stage_words(progress: Progress) -> str:
    """The stage of the most advanced source image, in words."""
    return STAGES[progress.stage] if progress.stage else "finished"


def in_flight(progress: Progress) -> str:
    """Source images in progress by stage, the most advanced first; empty if none is in progress."""
    stages = {name: getattr(progress.stages, name) for name in reversed(get_args(Stage))}
    return ", ".join(f"{count} {STAGES[name]}" for name, count in stages.items() if count)
