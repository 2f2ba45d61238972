"""Training commands, one model each: `python -m research.train.NAME`."""
