"""Where shipped weights and oracles lie, and where trainings keep checkpoints, caches and unshipped models."""

from __future__ import annotations

from pathlib import Path

from shared.profiles.weights import REPOSITORY

WEIGHTS = REPOSITORY / "tinyworld" / "weights"
ORACLE_WEIGHTS = Path(__file__).parents[1] / "weights" / "oracles"
RUNS = Path("runs")
ROAD_MODELS = RUNS / "roads" / "models"


def weights_of(domain: str) -> Path:
    """Where the weights of a domain (`objects`, `roads`) lie."""
    return WEIGHTS if domain == "objects" else WEIGHTS / domain
