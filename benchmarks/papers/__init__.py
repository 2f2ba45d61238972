"""Reproduction kits: the papers' experiments on their own data sets, one command a paper (docs/measurements/paper-tables.md)."""
