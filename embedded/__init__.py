"""The composition root: runs the whole system in one process. No other package imports it."""
