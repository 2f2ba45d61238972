"""Measure the editor that follows instructions by the oracles: `python -m research.measure.instruct --out FOLDER`.

`--domain objects` (the default) runs `objects.py`, `--domain roads` runs `roads.py`; `--help` beside it says more.
"""

from research.measure.instruct import objects, roads
from tinyworld.domain.names import run_for_domain

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
