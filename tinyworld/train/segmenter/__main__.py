"""Train a segmenter: `python -m tinyworld.train.segmenter [--domain roads]`.

Of objects there is one; of driving scenes one for each use, which its name says (`roads.py`).
"""

from __future__ import annotations

from tinyworld.domain.names import run_for_domain
from tinyworld.train.segmenter import objects, roads

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
