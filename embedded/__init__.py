"""The composition root: runs the whole system in one process. Only `contrafact.test` imports it."""
