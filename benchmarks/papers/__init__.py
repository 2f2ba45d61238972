"""Reproduction kits: the papers' experiments on their own data sets, one command a paper (docs/how-to/reproduce.md)."""
