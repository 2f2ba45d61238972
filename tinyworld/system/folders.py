"""Where shipped weights lie, and where trainings keep checkpoints, caches and models that are not shipped."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent.parent / "weights"
RUNS = Path("runs")
ROAD_MODELS = RUNS / "roads" / "models"


def weights_of(domain: str) -> Path:
    """Where the weights of a domain (`objects`, `roads`) lie."""
    return WEIGHTS if domain == "objects" else WEIGHTS / domain
