"""Train a segmenter: `python -m research.train.segmenter [--domain roads]`.

Of objects there is one; of driving scenes one for each use, which its name says (`roads.py`).
"""

from __future__ import annotations

from research.train.segmenter import objects, roads
from tinyworld.domain.names import run_for_domain

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
