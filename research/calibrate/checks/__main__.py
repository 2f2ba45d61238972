"""Set the thresholds of the image checks: `python -m research.calibrate.checks [--domain roads] --write`."""

from __future__ import annotations

from research.calibrate.checks import objects, roads
from tinyworld.domain.names import run_for_domain

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
