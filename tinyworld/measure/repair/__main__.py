"""Repair planted models and compare the result with renderer truth.

python -m tinyworld.measure.repair --out runs/repair
python -m tinyworld.measure.repair --domain roads --out runs/roads/repair --profile PROFILE
"""

from __future__ import annotations

from tinyworld.domain.names import run_for_domain
from tinyworld.measure.repair import objects, roads

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
