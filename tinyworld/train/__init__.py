"""Training commands, one model each: `python -m tinyworld.train.NAME`."""
