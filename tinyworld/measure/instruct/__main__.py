"""Measure the editor that follows instructions by the oracles: `python -m tinyworld.measure.instruct --out FOLDER`.

`--domain objects` (the default) runs `objects.py`, `--domain roads` runs `roads.py`; `--help` beside it says more.
"""

from tinyworld.domain.names import run_for_domain
from tinyworld.measure.instruct import objects, roads

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
