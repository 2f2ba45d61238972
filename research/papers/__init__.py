"""Reproduction kits: the papers' experiments on their own data sets (research/docs/paper-tables.md)."""
