"""Repair planted models and compare the result with renderer truth.

python -m research.measure.repair --out runs/repair
python -m research.measure.repair --domain roads --out runs/roads/repair --profile PROFILE
"""

from __future__ import annotations

from research.measure.repair import objects, roads
from tinyworld.domain.names import run_for_domain

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
