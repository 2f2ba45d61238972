"""The oracles of both domains: `python -m research.train.oracle`."""
