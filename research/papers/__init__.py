"""Reproduction kits: the papers' experiments on their own data sets (docs/measurements/paper-tables.md)."""
