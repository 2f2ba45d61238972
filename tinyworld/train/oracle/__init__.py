"""The oracles of both domains: `python -m tinyworld.train.oracle`."""
