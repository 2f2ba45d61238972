"""Train an oracle: `python -m tinyworld.train.oracle [--domain roads]`.

python -m tinyworld.train.oracle oracle-a                      # objects, ResNet
python -m tinyworld.train.oracle oracle-b                      # objects, RegNet
python -m tinyworld.train.oracle --domain roads reader-a       # driving scenes, ResNet
python -m tinyworld.train.oracle --domain roads reader-b       # driving scenes, RegNet
"""

from __future__ import annotations

from tinyworld.domain.names import run_for_domain
from tinyworld.train.oracle import objects, roads

if __name__ == "__main__":
    run_for_domain(objects=objects.main, roads=roads.main)
