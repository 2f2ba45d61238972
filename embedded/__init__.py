"""The one composition root: the whole system in one process. Nobody imports it."""
