"""Train an oracle: `python -m research.train.oracle [--domain roads]`.

python -m research.train.oracle oracle-a                      # objects, ResNet
python -m research.train.oracle oracle-b                      # objects, RegNet
python -m research.train.oracle --domain roads reader-a       # driving scenes, ResNet
python -m research.train.oracle --domain roads reader-b       # driving scenes, RegNet
"""

from __future__ import annotations

from research.train.oracle import objects, roads
from tinyworld.domain.names import run_for_domain

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
